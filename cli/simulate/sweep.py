"""One number varied: which values `--sweep` asks for, and what is simulated with each. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from deadpool.cli.simulate.cluster import HOUR_S, RecoveryTimes, SimulatedCluster
from deadpool.host.errors import ConfigError

_MOST_VALUES = 200
_FIELDS = {  # by the option's name: the field, whether its values are whole numbers, and what 1 is in the field's unit
    "nodes": ("nodes", True, 1),
    "spares": ("spares", True, 1),
    "step-time": ("step_s", False, 1.0),
    "failures-per-node-day": ("failures_per_node_day", False, 1.0),
    "transient-share": ("transient_share", False, 1.0),
    "repair-time": ("repair_s", False, HOUR_S),
    "checkpoint-every": ("checkpoint_every", True, 1),
    "checkpoint-time": ("checkpoint_s", False, 1.0),
    "restart-time": ("restart_s", False, 1.0),
    "memory-restart-time": ("memory_restart_s", False, 1.0),
    "exclude-time": ("exclude_s", False, 1.0),
    "swap-time": ("swap_s", False, 1.0),
}
_MAY_BE_ZERO = {"spares", "failures-per-node-day", "transient-share", "checkpoint-every", "checkpoint-time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """`option`: of the command line. `values`: as the user writes them; `unit`: what 1 of them is in the field's."""

    option: str
    values: tuple[float, ...]

    def cases(self, cluster: SimulatedCluster, times: RecoveryTimes) -> Iterable[tuple[float, SimulatedCluster, RecoveryTimes]]:
        """Yields (value, cluster, times) for each of the values."""
        name, _, unit = _FIELDS[self.option]
        for value in self.values:
            change: dict[str, Any] = {name: value * unit}
            if name in {each.name for each in fields(SimulatedCluster)}:
                yield value, replace(cluster, **change), times
            else:
                yield value, cluster, replace(times, **change)


def read_sweep(text: str) -> Sweep:
    """Returns the sweep of `spares=0:16`, `spares=0:16:4` or `swap-time=5,30,60`. ConfigError, in one line, for anything else."""
    option, equals, written = text.partition("=")
    if option not in _FIELDS or not equals:
        raise ConfigError(f"--sweep {text}: write OPTION=FROM:TO[:STEP] or OPTION=A,B,...; OPTION is one of {', '.join(_FIELDS)}")
    whole = _FIELDS[option][1]
    try:
        values = _values(written, whole=whole)
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise ConfigError(f"--sweep {text}: {written!r} is neither FROM:TO[:STEP] nor A,B,... of {kind}") from None
    if not 1 <= len(values) <= _MOST_VALUES:
        raise ConfigError(f"--sweep {text}: these are {len(values)} values; 1 to {_MOST_VALUES} can be swept")
    if wrong := [value for value in values if not (value > 0 or (value == 0 and option in _MAY_BE_ZERO))]:
        raise ConfigError(f"--sweep {text}: {wrong[0]:g} is not a possible {option}")
    if option == "transient-share" and max(values) > 1:
        raise ConfigError(f"--sweep {text}: {max(values):g} is more than the whole: write shares from 0 to 1")
    return Sweep(option=option, values=values)


def _values(written: str, *, whole: bool) -> tuple[float, ...]:
    number = int if whole else float
    if ":" not in written:
        return tuple(number(each) for each in written.split(","))
    first, last, *rest = (number(each) for each in written.split(":"))
    by = rest[0] if rest else 1
    if by <= 0 or len(rest) > 1 or not first <= last < float("inf"):
        raise ValueError(written)
    count = int((last - first) / by + 1e-9) + 1
    return tuple(first + index * by for index in range(min(count, _MOST_VALUES + 1)))
