"""GroupNames under which the members of a group meet, the same on every rank whatever each has made before. Pure.

c10d counts groups per process: a survivor that has made one in each of eight steps and a joiner that has rehearsed two disagree.
So a name is the set of ranks and a number within the generation. A reform numbers the groups that a process holds, for each set
of ranks in the order of their making; those that every member holds are opened, and the groups made after that count on.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

WORLD = "all"  # of the default group
_TEXT_MAX = 32


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns a short text for this set of ranks: "0-7", "0-14:2", "0,3,4", else a digest. Of no ranks: the default group."""
    if not ranks:
        return WORLD
    steps = {after - before for before, after in pairwise(ranks)}
    if len(ranks) > 2 and len(steps) == 1:
        (step,) = steps
        return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step != 1 else "")
    text = ",".join(map(str, ranks))
    return text if len(text) <= _TEXT_MAX else f"{len(ranks)}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def numbered(held: Iterable[str]) -> list[str]:
    """Returns the names of groups that a process holds, given their sets of ranks in the order of their making."""
    count: Counter[str] = Counter()
    names = []
    for ranks in held:
        names.append(f"{ranks}#{count[ranks]}")
        count[ranks] += 1
    return names


class GroupNames:
    """GroupNames for the groups that are made in one generation. `reopened`: how many of each set of ranks it began with."""

    def __init__(self, reopened: Mapping[str, int]) -> None:
        self._count = Counter(reopened)

    def next(self, ranks: str) -> tuple[str, int]:
        """Returns the name of the next group of these ranks and its number, from 1 on."""
        number = self._count[ranks]
        self._count[ranks] += 1
        return f"{ranks}#{number}", number + 1
