"""Option values of ours that are more than a word: text in, value out; click says which option was wrong."""

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import click

from deadpool.host.errors import ConfigError

ANY_PLACE = "any"
_PLACE = re.compile(r"(?:(?P<host>[^\s:]+|\[\S+\]):)?(?P<port>[0-9]{1,6})")
_LOOPBACK, _HIGHEST_PORT = "127.0.0.1", 65535
_CONNECTIONS_MAX = 16


def seconds(*, at_least: float | None = None) -> Callable[[Any], float]:
    """Returns the type of a time in seconds: a finite number, more than 0 unless `at_least` says otherwise."""

    def seconds_type(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise click.BadParameter(f"{text}: write a number of seconds, as 30 or 0.5")
        if at_least is None and value <= 0:
            raise click.BadParameter(f"{text}: must be more than 0 s")
        if at_least is not None and value < at_least:
            raise click.BadParameter(f"{text}: must be at least {at_least:g} s")
        return value

    return seconds_type


def whole_number(*, at_least: int = 0, at_most: int | None = None) -> Callable[[Any], int]:
    """Returns the type of a whole number in that range."""
    wanted = f"{at_least} or more" if at_most is None else f"{at_least} to {at_most}"

    def whole_number_type(text: str | int) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", str(text).strip()):
            raise click.BadParameter(f"{text}: write a whole number, {wanted}")
        value = int(text)
        if value < at_least or (at_most is not None and value > at_most):
            raise click.BadParameter(f"{text}: must be {wanted}")
        return value

    return whole_number_type


def is_place(text: str) -> bool:
    """Returns whether that may be a PORT or HOST:PORT, and not the name of a script."""
    return _PLACE.fullmatch(text) is not None


def place(text: str) -> str:
    """Returns HOST:PORT of [HOST:]PORT, or of ANY_PLACE; on this machine's loopback where no host is named."""
    found = _PLACE.fullmatch(text)
    if found is None and text != ANY_PLACE:
        raise click.BadParameter(f"{text}: write PORT or HOST:PORT")
    if found is None:
        return f"{_LOOPBACK}:0"
    if not 0 < int(found["port"]) <= _HIGHEST_PORT:
        raise click.BadParameter(f"{text}: a port is 1 to {_HIGHEST_PORT}")
    return f"{found['host'] or _LOOPBACK}:{found['port']}"


def steps_or_auto(text: str | int) -> int:
    """Returns a number of steps; 0 for auto."""
    return 0 if str(text).strip().lower() in ("auto", "0") else whole_number(at_least=1)(text)


def connections_or_auto(text: str | int) -> int:
    """Returns a number of connections; 0 for auto."""
    return 0 if str(text).strip().lower() in ("auto", "0") else whole_number(at_least=1, at_most=_CONNECTIONS_MAX)(text)


def path_text(text: str) -> str:
    """Returns the path without what means nothing in it, as text; "" for none."""
    return str(PurePath(text)) if text else ""


class RulesFile(click.Path):
    """A file of failure rules; the option's value is its text, which was checked."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "":  # the default: none
            return ""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        from deadpool.supervisor.failures.rules import parse_rules

        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--failure-rules {path}: {error}") from error
        parse_rules(text, f"--failure-rules {path}")
        return text


class TopologyFile(click.Path):
    """A file that says which nodes fail together; the option's value is its lines, as ((node, domain), ...)."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # the default: none
            return ()
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--topology {path}: {error}") from error
        return tuple(_domains(lines, f"--topology {path}"))


def _domains(lines: Sequence[str], where: str) -> Iterator[tuple[str, str]]:
    known: set[str] = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        parts = [part for part in words[-1].split("/") if part]
        if len(words) != len(("NODE", "DOMAIN")) or not parts or words[0] in known:
            problem = f"{words[0]} was named before" if words[0] in known else "write NODE DOMAIN, as: trainer1 pod1/rack3"
            raise ConfigError(f"{where}, line {number}: {line.strip()}: {problem}")
        known.add(words[0])
        yield words[0], "/".join(parts)


def host_names(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the hosts of `a,b,c`, each once."""
    if isinstance(text, tuple):
        return text
    names = tuple(each.strip() for each in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z0-9_@.:%\[\]-]+", name) and not name.startswith("-") for name in names):
        raise click.BadParameter(f"{text!r}: write hosts as a,b,c")
    if len(set(names)) < len(names):
        raise click.BadParameter(f"{text!r} names a host twice")
    return names


def size(text: str | int) -> int:
    """Returns the bytes of `500M` or `12G`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", str(text))
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size: write it as 500M or 12G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))
