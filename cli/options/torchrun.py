"""torchrun's options that are no setting of ours: those that others of ours answer, and those that mean nothing here.

docs/torchrun-options.md is the table for readers; tests/unit/cli/options/test_torchrun_options.py holds both against
the installed torch.
"""

import signal
from collections.abc import Mapping
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
COUNTED = ("auto", "cpu", "gpu", "xpu")


def take_out(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the foreign options from `options`; returns those that were given, by their names."""
    found = {name: options.pop(name.replace("-", "_")) for name in FOREIGN}
    return {name: value for name, value in found.items() if value is not None}


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
