"""How every command of ours ends: an exit code, and one line on stderr when something is wrong."""

import os
from collections.abc import Callable
from typing import Any

import click

from deadpool.host.console import tell
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.host.limits import no_process_left


def guarded(command: Callable[[], Any]) -> int:
    """Returns what the command returns as its exit code; an error of ours or of usage is one line on stderr."""
    _open_missing_streams()
    try:
        return int(command() or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        say(" ".join(error.format_message().split()))
        return 2
    except DeadpoolError as error:
        say(str(error))
        return 2 if isinstance(error, ConfigError) else 1
    except (OSError, RuntimeError) as error:
        if not (reason := no_process_left(error)):
            raise
        say(reason)
        return 2
    except click.Abort:
        return 130


def _open_missing_streams() -> None:
    """Where a standard stream is closed, the next file to be opened would get its number, and be written to as the console."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            os.set_inheritable(fd, True)


def say(line: str) -> None:
    """Prints a line of ours."""
    tell(f"deadpool: {line}")
