"""Shell completion of our commands: click's own scripts."""

from collections.abc import Mapping

import click
from click.shell_completion import get_completion_class


def completion_script(shell: str, programs: Mapping[str, click.Command]) -> str:
    """Returns what the shell (bash, zsh or fish) is to evaluate, for all these programs."""
    made = get_completion_class(shell)
    assert made is not None
    parts = [
        made(command, {}, name, f"_{name.replace('-', '_')}_COMPLETE".upper()).source() for name, command in programs.items()
    ]
    return "\n".join(parts) + "\n"
