"""The checksums of a replica's items, taken while their bytes come in: they are still in the processor's cache then.

Bytes come in runs whose places rise. An item comes whole or not at all; what has not come must lie there already (wire.py).
"""

import operator
from bisect import bisect_left, bisect_right
from itertools import compress

import xxhash

from deadpool.host.errors import SnapshotError
from deadpool.proto.vault.layout import TURNS, Layout, Tables, checksum, checksums


class ArrivingItems:
    """Of one replica. `data`: the memory in which it lies, of the layout's unique bytes."""

    def __init__(self, layout: Layout, data: memoryview) -> None:
        self._layout, self._data = layout, data
        self._unique = layout.unique_items
        self._sums: list[int | None] = [None] * len(self._unique.items)
        self._next = 0  # among the unique items: the one whose bytes come now or next
        self._at = 0  # where the next bytes are expected, when an item has begun to come
        self._begun: xxhash.xxh3_64 | None = None

    def landed(self, begin: int, end: int) -> None:
        """These bytes have come. SnapshotError unless they go on where an item was left, or begin one."""
        unique = self._unique
        if self._begun is None:
            self._next = bisect_left(unique.begins, begin, self._next)
            if self._next and unique.ends[self._next - 1] > begin:
                raise SnapshotError(f"{unique.items[self._next - 1].key} does not begin at {begin}")
        elif begin != self._at:
            raise SnapshotError(f"{unique.items[self._next].key} came in part only")
        else:
            upto = min(end, unique.ends[self._next])
            self._begun.update(self._data[begin:upto])
            if upto == unique.ends[self._next]:
                self._sums[self._next] = self._begun.intdigest()
                self._begun, self._next = None, self._next + 1
        self._at = end
        if self._begun is None:
            whole = bisect_right(unique.ends, end, self._next)
            self._sums[self._next : whole] = checksums(self._data, unique.slices[self._next : whole])
            self._next = whole
            if whole < len(unique.items) and unique.begins[whole] < end:
                self._begun = xxhash.xxh3_64(self._data[unique.begins[whole] : end])

    def check(self, tables: Tables, held: Tables | None, turn: int = 0) -> None:
        """SnapshotError unless each item is what these tables say. `held`: of the state that the memory held before.

        `turn`: counts the states of a slot: an item that has not come is read itself when its turn is.
        """
        unique = self._unique
        if self._begun is not None:
            raise SnapshotError(f"{unique.items[self._next].key} came in part only")
        expected = list(map(tables.checksums.__getitem__, unique.indices))
        if self._sums == expected:
            return
        same_place = held is not None and held.layout == self._layout
        for place in compress(range(len(expected)), map(operator.ne, self._sums, expected)):
            index, item, found = unique.indices[place], unique.items[place], self._sums[place]
            if found is None and held is not None and same_place:
                found = held.checksums[index]
                if index % TURNS == turn % TURNS and checksum(self._data[item.offset : item.offset + item.nbytes]) != found:
                    raise SnapshotError(f"{item.key} was left as it lay, and is not what it was")
            if found is None:
                raise SnapshotError(f"{item.key} has not come, and is not held")
            if found != expected[place]:
                raise SnapshotError(f"{item.key} arrived with another checksum")
