"""Which names a piece of code uses with the value that they had before: those that it reads before it writes them. Pure."""

import dis
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType

_ACCESS = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|NAME|GLOBAL|DEREF|CLASSDEREF|CLOSURE)")  # two in one opcode since Python 3.13
_PART = ("LOAD_ATTR", "LOAD_METHOD")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


@dataclass(slots=True)
class Uses:
    """`names`: in the order in which they are read. `dotted`: with the attributes that are read of them, as ("os", "environ")."""

    names: dict[str, None] = field(default_factory=dict)
    dotted: dict[tuple[str, ...], None] = field(default_factory=dict)

    def add(self, other: "Uses", *, without: Collection[str] = ()) -> None:
        self.names |= {name: None for name in other.names if name not in without}
        self.dotted |= {dotted: None for dotted in other.dotted if dotted[0] not in without}


def uses_of(code: CodeType) -> Uses:
    """Returns what a call of this code uses, and of the functions within it. Its own locals are new in each call."""
    found = _read_first(list(dis.get_instructions(code)), {*code.co_varnames, *code.co_cellvars}, at=-1)
    _add_inner(code, found, own_is_new=True)
    return found


def uses_from(code: CodeType, at: int) -> Uses:
    """Returns what code that stands at this offset uses from there on: to its end, and once more round the loops it is in."""
    instructions = list(dis.get_instructions(code))
    ahead = [each for each in instructions if each.offset >= at]
    backwards = [each.argval for each in ahead if each.opcode in _JUMPS and each.argval <= at]
    round_again = [each for each in instructions if min(backwards, default=at) <= each.offset < at]
    written: set[str] = set()
    found = _read_first(ahead, written, at=at)
    found.add(_read_first(round_again, written, at=at))
    _add_inner(code, found, own_is_new=False)
    return found


def _add_inner(code: CodeType, found: Uses, *, own_is_new: bool) -> None:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found.add(uses_of(each), without=code.co_cellvars if own_is_new else ())


def _read_first(instructions: Sequence[dis.Instruction], written: set[str], *, at: int) -> Uses:
    """Returns what is read before it is surely written. `written`: surely so before; gets what these instructions write.

    A write that a jump may pass by counts up to where that jump leads. `at`: the jump of this offset is not taken: it ends the
    loop that goes on.
    """
    found = Uses()
    ends: list[int] = []  # of what jumps may pass by, the innermost last
    passing: dict[str, int] = {}  # written, up to that offset
    dotted: tuple[str, ...] = ()
    for each in instructions:
        ends = [end for end in ends if each.offset < end]
        passing = {name: end for name, end in passing.items() if each.offset < end}
        for kind, name in _accesses(each):
            if kind != "LOAD":
                if ends:
                    passing[name] = min(ends)
                else:
                    written.add(name)
            elif name not in written and name not in passing:
                found.names[name] = None
                found.dotted[(name,)] = None
        dotted = _dotted(each, dotted)
        if dotted and dotted[0] in found.names:
            found.dotted[dotted] = None
        if each.opcode in _JUMPS and each.argval > each.offset and each.offset != at:
            ends.append(each.argval)
    return found


def _accesses(instruction: dis.Instruction) -> Iterator[tuple[str, str]]:
    kinds = _ACCESS.findall(instruction.opname)
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    yield from ((kind, name) for kind, name in zip(kinds, names, strict=False) if isinstance(name, str))


def _dotted(instruction: dis.Instruction, before: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the name with its attributes as far as it has been read, () when the instruction reads something else."""
    if instruction.opname in _PART and before:
        return (*before, instruction.argval)
    if instruction.opname in ("CACHE", "PRECALL", "PUSH_NULL", "COPY"):
        return before
    accesses = list(_accesses(instruction))
    return (accesses[-1][1],) if accesses and accesses[-1][0] == "LOAD" else ()
