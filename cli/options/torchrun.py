"""torchrun's options that are no setting of ours: those that others of ours answer, and those that mean nothing here.

docs/torchrun-options.md is the table for readers; tests/unit/cli/options/test_torchrun_options.py holds both against
the installed torch.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import click

from deadpool.host.errors import ConfigError
from deadpool.proto.streams import check_streams

# Taken out of the parsed options again by `take_out`. Name -> type; each has torchrun's PET_ variable.
FOREIGN: Mapping[str, Any] = {
    "rdzv-backend": str,
    "rdzv-endpoint": str,
    "rdzv-id": str,
    "rdzv-conf": str,
    "node-rank": int,
    "master-addr": str,
    "master-port": int,
    "local-addr": str,
    "monitor-interval": float,
    "event-log-handler": str,
    "logs-specs": str,
}
MEETING = ("rdzv-endpoint", "node-rank", "master-addr", "master-port", "local-addr")  # how several machines find each other
KNOWN_BACKENDS = ("static", "c10d")
COUNTED = ("auto", "cpu", "gpu", "xpu")
_COUNT_TIMEOUT_S = 120
_COUNT = """
import sys, torch
kind = sys.argv[1]
device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
if kind == "auto" and device is None:
    import os
    print(len(os.sched_getaffinity(0)))
else:
    wanted = {"auto": device and device.type, "gpu": "cuda", "xpu": "xpu"}[kind]
    print(torch.accelerator.device_count() if device is not None and device.type == wanted else 0)
"""


def given_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the foreign options that were given, by their names."""
    found = {name: options[name.replace("-", "_")] for name in FOREIGN}
    return {name: value for name, value in found.items() if value is not None}


def take_out(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the foreign options from `options`; returns those that were given, by their names."""
    given = given_in(options)
    for name in FOREIGN:
        del options[name.replace("-", "_")]
    return given


def check_foreign(given: Mapping[str, Any], *, machines: int) -> None:
    """Raises ConfigError for what cannot be had. `machines`: the most nodes that the job may have."""
    if "logs-specs" in given:
        raise ConfigError(f"--logs-specs {given['logs-specs']}: torchrun's plugins do not run here; use -r, -t, --log-dir")
    if machines == 1 and given.get("node-rank", 0) > 0:
        raise ConfigError(f"--node-rank {given['node-rank']}: a job of one node has node rank 0 only; is --nnodes missing?")


def notes(given: Mapping[str, Any], *, machines: int, standalone: bool) -> Iterator[str]:
    """Yields one line for each option that is accepted and changes nothing."""
    if given.get("rdzv-backend", "static") not in KNOWN_BACKENDS:
        yield f"--rdzv-backend {given['rdzv-backend']}: not used, nodes meet at the job's own supervisor"
    if "rdzv-conf" in given and "join_timeout" not in str(given["rdzv-conf"]):
        yield "--rdzv-conf: not used, but for join_timeout: there is no rendezvous to set up"
    if "monitor-interval" in given:
        yield "--monitor-interval: not used, the end of a rank is seen at once"
    if given.get("event-log-handler", "null") != "null":
        yield f"--event-log-handler {given['event-log-handler']}: not used, events are in the log folder's events.jsonl"
    if given.get("master-port") and not standalone and (machines == 1 or not given.keys() & {"master-addr", "node-rank"}):
        yield "--master-port: not used, every generation's store takes a free port; ranks read MASTER_PORT"


def run_id(given: Mapping[str, Any], *, standalone: bool) -> str:
    """Returns TORCHELASTIC_RUN_ID as --rdzv-id gives it, "" for the job's own name."""
    return "" if standalone else str(given.get("rdzv-id", ""))


def node_range(text: str) -> tuple[int, int]:
    """Returns (least, most) of `N` or `MIN:MAX`."""
    low, colon, high = str(text).partition(":")
    if not low.isdecimal() or (colon and not high.isdecimal()):
        raise click.BadParameter(f"{text!r} is not a number, nor MIN:MAX.")
    least, most = int(low), int(high) if colon else int(low)
    if least < 1:
        raise click.BadParameter(f"{text} is too small: at least 1.")
    if most < least:
        raise click.BadParameter(f"{text}: MAX is less than MIN.")
    return least, most


def ranks_per_node(text: str) -> int | str:
    """Returns the number, or the kind of device that is to be counted."""
    if str(text) in COUNTED:
        return str(text)
    if not str(text).isdecimal():
        raise click.BadParameter(f"{text!r} is not a number, nor one of {', '.join(COUNTED)}.")
    if int(text) < 1:
        raise click.BadParameter(f"{text} is too small: at least 1.")
    return int(text)


def count_devices(kind: str, python: str) -> int:
    """Returns how many ranks `--nproc-per-node kind` means. The ranks' own interpreter counts: only torch knows its devices."""
    if kind == "cpu":
        return len(os.sched_getaffinity(0))
    done = subprocess.run(
        [python, "-P", "-c", _COUNT, kind], capture_output=True, text=True, timeout=_COUNT_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise ConfigError(f"--nproc-per-node {kind}: {python} cannot count: {(done.stderr.strip() or '?').splitlines()[-1]}")
    count = int(done.stdout.split()[-1])
    if count == 0:
        raise ConfigError(f"--nproc-per-node {kind}: there is none here; give a number, or cpu")
    return count


def streams(option: str) -> Any:
    """Returns the type of an option that names output streams."""

    def streams_type(text: str) -> str:
        try:
            check_streams(option, text)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error
        return text

    return streams_type


def local_ranks(text: str | tuple[int, ...]) -> tuple[int, ...]:
    """Returns the numbers of `0,1,2`."""
    if isinstance(text, tuple):
        return text
    if not all(each.strip().isdecimal() for each in text.split(",")) and text:
        raise click.BadParameter(f"{text!r}: write local ranks as 0,1,2")
    return tuple(int(each) for each in text.split(",")) if text else ()


def words(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words of `apple,orange`; a double comma is a comma within a word."""
    if isinstance(text, tuple):
        return text
    return tuple(each.replace("\0", ",") for each in text.replace(",,", "\0").split(",") if each)


def signal_names(text: str) -> str:
    """Returns the names as they were given, if each is a signal that can be caught."""
    for name in text.split(","):
        number = getattr(signal.Signals, name.strip(), None) if name.strip().startswith("SIG") else None
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise click.BadParameter(f"{name!r} is not a signal that can be handled; write them as SIGTERM,SIGUSR1")
    return text
