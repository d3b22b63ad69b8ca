"""What a rank holds together with others, in 8 bytes for each set of them: of a state in a slot, be it a snapshot or a replica.

The ranks say it to each other before they commit a state (trainer_hooks/protection/commit.py). Agents say it to the supervisor of
what lies in their vaults: it finds out by that which states may have been committed (supervisor/recovery/plan.py).
"""

import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deadpool.proto.vault.layout import Layout, Tables, checksum

Together = Mapping[tuple[int, ...], int]  # ranks of a set, sorted, this one among them -> checksum of all that they hold alike


class HeldTogether:
    """Says of each state of a rank what it holds together with its peers. For one thread alone: it keeps the sets of a layout."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._layout: Layout | None = None
        self._sets: list[tuple[tuple[int, ...], _Picker, bytes]] = []  # ranks, picks its items' sums, these items' names hashed

    def of(self, tables: Tables) -> Together:
        if self._layout is not tables.layout:
            self._layout, self._sets = tables.layout, [*self._sets_of(tables.layout)]
        return {ranks: checksum(names + pick(tables.checksums)) for ranks, pick, names in self._sets}

    def _sets_of(self, layout: Layout) -> Iterator[tuple[tuple[int, ...], "_Picker", bytes]]:
        for number, peers in enumerate(layout.peer_sets):
            items = sorted((item.key, index) for index, item in enumerate(layout.items) if item.peers == number)
            names = b"".join(struct.pack("<Q", checksum(key.encode())) for key, _ in items)
            if items:
                yield tuple(sorted((self._rank, *peers))), _picker([index for _, index in items]), names


_Picker = Callable[[Sequence[int]], bytes]


def _picker(indices: Sequence[int]) -> _Picker:
    """Returns what packs these of some checksums."""
    pick: Callable[[Sequence[int]], Any] = operator.itemgetter(*indices)
    pack = struct.Struct(f"<{len(indices)}Q").pack
    return (lambda sums: pack(pick(sums))) if len(indices) == 1 else (lambda sums: pack(*pick(sums)))
