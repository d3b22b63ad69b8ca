"""One option of deadpool-launch as a value: what click makes of it, and how --help shows it under its heading."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import click

from deadpool.proto.config import JobConfig

CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "max_content_width": 110,
    "allow_interspersed_args": False,
}
_JOB_DEFAULTS = {field.name: field.default for field in dataclasses.fields(JobConfig)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`field`: of JobConfig, whose default is the option's; of LaunchOptions where the setting says nothing of the job itself.

    `default`: where JobConfig has none. `default_is`: in words, for a default that is no constant. `torchrun`: torchrun has the
    option too, and reads its default from PET_NAME; `variable`: from that one as well. `unit`: of the value, for the reference.
    `alone`: the value where the option is given without one; `is_value` says then whether the word behind it is one.
    """

    field: str
    name: str
    help: str
    type: Any = str
    metavar: str | None = None
    unit: str = ""
    default: Any = None
    default_is: str = ""
    torchrun: bool = False
    short: str = ""
    variable: str = ""
    multiple: bool = False
    hidden: bool = False
    alone: str = ""
    is_value: Callable[[str], bool] | None = None

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def default_value(self) -> Any:
        default = _JOB_DEFAULTS.get(self.field, dataclasses.MISSING)
        default = self.default if default is dataclasses.MISSING else default
        return default.value if isinstance(default, Enum) else default

    @property
    def shown_default(self) -> str:
        """The default in a reader's words, "" where there is none worth a word."""
        if self.default_is or self.is_flag or self.multiple or self.default_value in (None, "", ()):
            return self.default_is
        return f"{self.default_value:g}" if isinstance(self.default_value, float) else str(self.default_value)

    @property
    def variables(self) -> list[str]:
        names = [f"PET_{self.name.replace('-', '_').upper()}", self.variable] if self.torchrun else []
        return [name for name in names if name]

    def option(self, heading: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Returns click's decorator for it."""
        names = [*([f"-{self.short}"] if self.short else []), f"--{self.name}", self.field]
        return click.option(
            *names,
            cls=HeadedOption,
            heading=heading,
            alone=self.alone,
            is_value=self.is_value,
            is_flag=self.is_flag,
            type=self.type,
            multiple=self.multiple,
            metavar=self.metavar,
            default=None if self.multiple else self.default_value,
            envvar=self.variables or None,
            hidden=self.hidden,
            help=self.help + (f"  [default: {self.shown_default}]" if self.shown_default else ""),
        )


class HeadedOption(click.Option):
    """An option that --help shows under a heading, and that may do without its value, where `is_value` tells."""

    def __init__(self, *arguments: Any, heading: str, alone: str, is_value: Callable[[str], bool] | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.heading, self.alone, self.is_value = heading, alone, is_value


class HeadedCommand(click.Command):
    """Shows options under their headings, in the order in which the headings come; what has none comes last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_values(args))

    def _with_values(self, words: list[str]) -> list[str]:
        """Gives options their value that stand without one, before the first word that is no option's: SCRIPT."""
        named = {name: each for each in self.params if isinstance(each, HeadedOption) for name in each.opts}
        found, rest = list[str](), list(words)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            word = rest.pop(0)
            name, has_value, _ = word.partition("=")
            option = named.get(name.replace("_", "-"))
            if option is None or has_value or option.is_flag or option.count:
                found.append(word)
            elif option.is_value is not None and not (rest and option.is_value(rest[0])):
                found.append(f"{word}={option.alone}")
            else:
                found += [word, *rest[:1]]
                del rest[:1]
        return found + rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        for option in sorted(options, key=lambda each: not isinstance(each, HeadedOption)):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(option.heading if isinstance(option, HeadedOption) else "Other", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
