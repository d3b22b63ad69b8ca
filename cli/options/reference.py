"""docs/configuration.md, generated from the settings: `python -m deadpool.cli.options.reference > docs/configuration.md`."""

from collections.abc import Iterator

import click

from deadpool.cli.options.setting import Setting
from deadpool.cli.options.settings import HEADINGS

_INTRODUCTION = """\
# Every option of deadpool-launch

Generated from the program's own table (`python -m deadpool.cli.options.reference`); a test holds this file against it.
Options may be spelt with dashes or underscores. Times are in seconds and may have a fraction. A variable, where one is
named, gives the default, as for torchrun. What else torchrun has: [torchrun-options.md](torchrun-options.md).

What a value does not allow, or what contradicts another option, is refused in one line before anything is started (exit code 2).
"""


def reference() -> str:
    """Returns the text of docs/configuration.md."""
    return "\n".join([_INTRODUCTION, *(line for heading, settings in HEADINGS.items() for line in _table(heading, settings))])


def _table(heading: str, settings: tuple[Setting, ...]) -> Iterator[str]:
    yield f"## {heading}\n"
    yield "| option | default | |\n|---|---|---|"
    for each in settings:
        name = " ".join(filter(None, (f"--{each.name}", _value(each))))
        short = f"`-{each.short}`, " if each.short else ""
        variables = "".join(f" Variable: `{variable}`." for variable in each.variables)
        repeatable = " May be given several times." if each.multiple else ""
        default = each.shown_default or ("off" if each.is_flag else "")
        unit = f" {each.unit}" if each.unit and default and not each.default_is else ""
        cells = (f"{short}`{name}`", f"{default}{unit}", f"{each.help}{repeatable}{variables}")
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _value(setting: Setting) -> str:
    if setting.is_flag:
        return ""
    if setting.metavar:
        return setting.metavar.strip("[]")
    return "|".join(setting.type.choices) if isinstance(setting.type, click.Choice) else setting.name.upper()


if __name__ == "__main__":
    print(reference(), end="")
