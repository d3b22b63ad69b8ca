"""A group of commands of which some are imported when they are called: `deadpool --help` must not wait for them."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A command that stands as `name` in `module`. `short_help`: what the list of commands says of it."""

    module: str
    name: str
    short_help: str

    def load(self) -> click.Command:
        command: click.Command = getattr(importlib.import_module(self.module), self.name)
        return command


class LazyGroup(click.Group):
    """`elsewhere`: command -> where it is."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, Elsewhere], **options: Any) -> None:
        super().__init__(*args, **options)
        self._elsewhere = elsewhere

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *self._elsewhere})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return self._elsewhere[name].load() if name in self._elsewhere else super().get_command(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(context):
            there = self._elsewhere.get(name)
            rows.append((name, there.short_help if there is not None else self.commands[name].get_short_help_str(200)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
