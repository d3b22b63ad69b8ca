"""The keys of the live view: what has been typed, and what is asked for once it is whole. Pure."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from deadpool.proto.faults import FAULTS, Target

KEYS = "q quit  d drain  l logs  i inject"
_ESCAPE, _ENTER, _BACKSPACE = "\x1b", ("\r", "\n"), ("\x7f", "\b")


class Question(StrEnum):
    """Its value is what is asked for."""

    DRAIN = "drain which node? "
    LOGS = "logs of which rank? "
    INJECT = "inject which failure? KIND [TARGET]: "


_OPENED_BY = {"d": Question.DRAIN, "l": Question.LOGS, "i": Question.INJECT}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedDrain:
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedInjection:
    kind: str
    target: int


Request = WantedDrain | WantedInjection


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """`command`: what is being asked, with `typed` as the answer so far. `message`: what became of the last one.

    `logs_of`: the rank whose output is shown.
    """

    command: Question | None = None
    typed: str = ""
    message: str = ""
    logs_of: int | None = None
    over: bool = False

    def lines(self, width: int) -> list[str]:
        """Returns the last lines of the view: what is being typed, or the keys, behind what became of the last command."""
        if self.command is not None:
            return [f"{self.command}{self.typed}_"]
        keys = KEYS + ("  Esc closes the logs" if self.logs_of is not None else "")
        together = f"{keys}   {self.message}".rstrip()
        return [together] if len(together) <= width else [*textwrap.wrap(self.message, width), keys]


def pressed(dialogue: Dialogue, key: str) -> tuple[Dialogue, Request | None]:
    """Returns the dialogue after this key, and what it asks for."""
    if dialogue.command is None:
        if key == "q":
            return replace(dialogue, over=True), None
        if key == _ESCAPE:
            return replace(dialogue, logs_of=None, message=""), None
        return replace(dialogue, command=_OPENED_BY.get(key), typed="", message=""), None
    if key == _ESCAPE:
        return replace(dialogue, command=None, typed=""), None
    if key in _BACKSPACE:
        return replace(dialogue, typed=dialogue.typed[:-1]), None
    if key not in _ENTER:
        return (replace(dialogue, typed=dialogue.typed + key) if key.isprintable() else dialogue), None
    asked, words = replace(dialogue, command=None, typed=""), dialogue.typed.split()
    if not words:
        return asked, None
    match dialogue.command:
        case Question.DRAIN:
            return asked, WantedDrain(node=words[0])
        case Question.LOGS:
            if words[0].isdecimal():
                return replace(asked, logs_of=int(words[0])), None
            return replace(asked, message=f"{words[0]} is no rank"), None
        case Question.INJECT:
            return _inject(asked, words)


def _inject(asked: Dialogue, words: list[str]) -> tuple[Dialogue, Request | None]:
    kind, target = words[0], words[1] if len(words) > 1 else ""
    if kind not in FAULTS:
        return replace(asked, message=f"{kind}: no such failure (deadpool inject --help lists them)"), None
    if FAULTS[kind].target is not Target.NONE and not target.isdecimal():
        return replace(asked, message=f"{kind}: say which {FAULTS[kind].target}"), None
    return asked, WantedInjection(kind=kind, target=int(target or 0))


def keys_in(data: bytes) -> Iterator[str]:
    """Yields the keys in what a terminal has sent; arrows and the other keys that send several characters are left out."""
    text = data.decode(errors="ignore")
    if len(text) > 1 and text.startswith(_ESCAPE):
        return
    yield from text
