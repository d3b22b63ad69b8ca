"""What the drill has shown: is a step that was done again the same, and if not, what is the likely cause? Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from deadpool.trainer_hooks.drill.tables import Difference, Table, TablePart, differences

_SHOWN = 3
_GENERATOR = "random generator "
_ITERATOR = "iterator "
ATTRIBUTE = "attribute "
SETTING = "setting "
UNPROTECTED = "unprotected "  # model or optimizer: of the script's, and not given to protect()
UNSEEN = "content of "  # of an object that shows nothing of itself, as a database
KEEPS = ", which keeps its answers"
CALL, HASHES = "call of ", "hash() of texts"  # of what no two attempts, or no two processes, answer alike
_OWNER = re.compile(r".*? ?(?:self\.)?[^.\[ ]*(?=[.\[]|$)")  # the name of what a variable belongs to
_PARTS = re.compile(r"\[[^\]]*\]|\.?[^.\[]+")
SUSPECT = "; likely "  # before each suspect in a cause
_UNSAID = " and {} more"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTables:
    """One rank's step at a boundary: what it held before and after, and what the step returned (in `after`)."""

    before: Table
    after: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """What some ranks found otherwise than the first time, and why that may be. `items`: of the state, or paths in it."""

    ranks: tuple[int, ...]
    cause: str
    items: tuple[str, ...] = ()


def findings(first: Mapping[int, AttemptTables], again: Mapping[int, AttemptTables]) -> list[Divergence]:
    """Returns what differs, the same cause said once for all its ranks; nothing when every rank has come out the same."""
    found: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for rank in sorted(first.keys() | again.keys()):
        if rank not in first or rank not in again:
            found.setdefault("what it held was not written down", []).append((rank, ()))
            continue
        for cause, items in _of_rank(first[rank], again[rank]):
            found.setdefault(cause, []).append((rank, items))
    return [
        Divergence(
            ranks=tuple(rank for rank, _ in where),
            cause=cause,
            items=tuple(dict.fromkeys(item for _, items in where for item in items)),
        )
        for cause, where in found.items()
    ]


def _of_rank(first: AttemptTables, again: AttemptTables) -> Iterator[tuple[str, tuple[str, ...]]]:
    restored = [each for each in differences(first.before, again.before) if each.part is not TablePart.LOOSE]
    stepped = [each for each in differences(first.after, again.after) if each.part is not TablePart.LOOSE]
    if restored:
        yield _restored(restored), _names(restored)
    elif stepped:
        loose = [each.name for each in differences(first.before, again.before) if each.part is TablePart.LOOSE]
        suspects = _suspects(loose, value_differs=_value_differs(stepped))
        yield SUSPECT.join([_stepped(stepped), *suspects]), _names(stepped)


def beside(first: Mapping[int, AttemptTables], again: Mapping[int, AttemptTables]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns what lies beside the state and is not what it was once the step was done again, with the ranks of which that is so.

    Where no finding is: nothing that was compared depends on it, but a later step, or the end of the script, may.
    """
    found: dict[str, list[int]] = {}
    for rank in sorted(first.keys() & again.keys()):
        names = [
            each.name
            for each in differences(first[rank].after, again[rank].after)
            if each.part is TablePart.LOOSE and not each.name.startswith((CALL, UNSEEN, HASHES, f"{ATTRIBUTE}training of module"))
        ]
        for name in _by_owner(names):
            found.setdefault(name, []).append(rank)
    return [(name, tuple(ranks)) for name, ranks in found.items()]


def _restored(found: Sequence[Difference]) -> str:
    items = [each for each in found if each.part is TablePart.ITEM]
    if not items:
        return f"metadata differs right after the restore, at {_listed(found)}"
    modules = _modules_of_buffers(items)
    if modules:
        return f"the state differs right after the restore: only the buffers of {', '.join(modules)} differ"
    return f"the state differs right after the restore: item {_listed(items)}"


def _stepped(found: Sequence[Difference]) -> str:
    items = [each for each in found if each.part is TablePart.ITEM]
    if _value_differs(found):
        return (
            "all state is the same before the step and what it returns differs: data or random numbers that depend on something "
            "other than the step; have batches from guard.steps(loader, ...), pass generators in extra="
        )
    modules = _modules_of_buffers(items)
    if modules and len(items) == len(found):
        return (
            f"the step returns the same, and after it only the buffers of {', '.join(modules)} differ: what is written to them "
            "depends on something that is not in the state"
        )
    if not items:
        return f"the step returns the same, and after it metadata differs at {_listed(found)}"
    what = "optimizer's state" if all(each.name.startswith("optimizer/") for each in items) else "state"
    return (
        f"the step returns the same, and the {what} differs after it ({', '.join(_names(items)[:_SHOWN])}): what comes after the "
        "loss depends on something that is not in the state"
    )


def _value_differs(found: Sequence[Difference]) -> bool:
    return any(each.part is TablePart.VALUE for each in found)


def _suspects(loose: Sequence[str], *, value_differs: bool) -> Iterator[str]:
    """Yields what lay beside the state and was not what it had been before the step, the likely ones.

    An optimizer comes after the loss: where that differs, its own attributes are not the first to look at, and else they are.
    What never answers alike is suspected where nothing else is.
    """
    said = [name for name in loose if not name.startswith(f"{ATTRIBUTE}training of module")]
    always = [name for name in said if name.startswith((CALL, UNSEEN)) or name == HASHES]
    kept = [name for name in said if name not in always]
    of_optimizers = [name for name in kept if name.startswith(ATTRIBUTE) and " of module " not in name]
    others = [name for name in kept if name not in of_optimizers]
    likely = (others or of_optimizers) if value_differs else (of_optimizers or others)
    calls = [name for name in always if name != HASHES]
    likely = sorted(likely, key=lambda name: not name.startswith((_GENERATOR, _ITERATOR))) or calls or always
    for name in _by_owner(likely):
        yield f"{name}, which is not in the state: {_advice(name)}"


def _by_owner(names: Sequence[str]) -> Iterator[str]:
    """Yields the names, but of an owner with many of them only what they have in common, as "variable heap"."""
    owners: dict[str, list[str]] = {}
    for name in names:
        path, of, module = name.partition(" of ")
        owners.setdefault(_OWNER.match(path)[0] + of + module, []).append(path)  # type: ignore[index]
    for owner, paths in owners.items():
        _, of, module = owner.partition(" of ")
        if len(paths) <= _SHOWN:
            yield from (f"{path}{of}{module}" for path in paths)
        else:
            columns = zip(*map(_PARTS.findall, paths), strict=False)
            common = takewhile(lambda column: len(set(column)) == 1, columns)
            yield f"{''.join(column[0] for column in common)}{of}{module}"


def _advice(name: str) -> str:
    if name.startswith(UNPROTECTED):
        return "give it to protect() with the others"
    if name == HASHES:
        return "another in each process, and so is the order of a set of texts; leave PYTHONHASHSEED=0 as it is"
    if name.startswith(UNSEEN):
        return "it cannot be looked into; have what a step reads of it in extra="
    if name.startswith(CALL):
        if name.endswith(KEEPS):
            return "they are gone in a new process; what it computes must depend on its arguments alone"
        return "it never answers the same; draw from the step's number, or from a generator"
    if name.startswith(SETTING):
        return "set it before the loop, as every process does"
    if name.startswith(_GENERATOR):
        return "pass it in extra=, or make it from the step's number"
    if name.startswith(_ITERATOR):
        return "have the batches from guard.steps(loader, ...), or make them from the step's number"
    if not name.startswith(ATTRIBUTE):
        return "compute it from the step, or pass what holds it in extra="
    if " of module " in name:
        return "register it as a buffer, or compute it from the step"
    return "it is no tensor of the optimizer's state; keep it there, or in the parameter groups"


def _modules_of_buffers(items: Sequence[Difference]) -> list[str]:
    """Returns the modules whose buffers these are, none when other items are among them."""
    if not items or not all(each.name.startswith("buffer/") for each in items):
        return []
    paths = [each.name.removeprefix("buffer/").partition("@")[0] for each in items]
    return list(dict.fromkeys(path.rpartition(".")[0] for path in paths))


def _listed(found: Sequence[Difference]) -> str:
    more = _UNSAID.format(len(found) - _SHOWN) if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more


def _names(found: Sequence[Difference]) -> tuple[str, ...]:
    return tuple(each.name for each in found)
