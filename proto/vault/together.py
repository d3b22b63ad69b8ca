"""What a rank holds together with others, in 8 bytes for each set of them: of a state in a slot, be it a snapshot or a replica.

The ranks say it to each other before they commit a state (trainer_hooks/protection/commit.py). Agents say it to the supervisor of
what lies in their vaults: it finds out by that which states may have been committed (supervisor/recovery/plan.py).
"""

import struct
from collections.abc import Iterator, Mapping

from deadpool.proto.vault.layout import Layout, Tables, checksum

Together = Mapping[tuple[int, ...], int]  # ranks of a set, sorted, this one among them -> checksum of all that they hold alike


class HeldTogether:
    """Says of each state of a rank what it holds together with its peers. For one thread alone: it keeps the sets of a layout."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._layout: Layout | None = None
        self._sets: list[tuple[tuple[int, ...], list[int], bytes]] = []  # ranks, indices of its items, these items' names hashed

    def of(self, tables: Tables) -> Together:
        if self._layout is not tables.layout:
            self._layout, self._sets = tables.layout, [*self._sets_of(tables.layout)]
        sums = tables.checksums
        return {
            ranks: checksum(names + struct.pack(f"<{len(indices)}Q", *(sums[index] for index in indices)))
            for ranks, indices, names in self._sets
        }

    def _sets_of(self, layout: Layout) -> Iterator[tuple[tuple[int, ...], list[int], bytes]]:
        for number, peers in enumerate(layout.peer_sets):
            items = sorted((item.key, index) for index, item in enumerate(layout.items) if item.peers == number)
            names = b"".join(struct.pack("<Q", checksum(key.encode())) for key, _ in items)
            if items:
                yield tuple(sorted((self._rank, *peers))), [index for _, index in items], names
