"""The checksums of a replica's items, taken while their bytes come in: they are still in the processor's cache then.

Bytes come in runs whose places rise. An item comes whole or not at all; what has not come must lie there already (wire.py).
"""

import xxhash

from deadpool.host.errors import SnapshotError
from deadpool.proto.vault.layout import TURNS, UNIQUE, Layout, Tables, checksum


class ArrivingItems:
    """Of one replica. `data`: the memory in which it lies, of the layout's unique bytes."""

    def __init__(self, layout: Layout, data: memoryview) -> None:
        self._items = [(index, item) for index, item in enumerate(layout.items) if item.peers == UNIQUE and item.nbytes]
        self._layout, self._data = layout, data
        self._next = 0  # index into _items of the one whose bytes come now or next
        self._at = 0  # where the next bytes are expected, when an item has begun to come
        self._begun: xxhash.xxh3_64 | None = None
        self._sums: dict[int, int] = {}

    def landed(self, begin: int, end: int) -> None:
        """These bytes have come. SnapshotError unless they go on where an item was left, or begin one."""
        at = begin
        if self._begun is None:
            while self._next < len(self._items) and self._items[self._next][1].offset < begin:
                left = self._items[self._next][1]
                if left.offset + left.nbytes > begin:
                    raise SnapshotError(f"{left.key} does not begin at {begin}")
                self._next += 1
        elif begin != self._at:
            raise SnapshotError(f"{self._items[self._next][1].key} came in part only")
        while at < end and self._next < len(self._items):
            index, item = self._items[self._next]
            item_end = item.offset + item.nbytes
            if self._begun is None:
                at = item.offset  # what lies before it belongs to no item
                if at >= end:
                    return
            upto = min(end, item_end)
            if self._begun is None and upto == item_end:
                self._sums[index] = checksum(self._data[at:upto])
            else:
                self._begun = self._begun or xxhash.xxh3_64()
                self._begun.update(self._data[at:upto])
            at = upto
            if at == item_end:
                if self._begun is not None:
                    self._sums[index] = self._begun.intdigest()
                self._begun, self._next = None, self._next + 1
        self._at = at

    def check(self, tables: Tables, held: Tables | None, turn: int = 0) -> None:
        """SnapshotError unless each item is what these tables say. `held`: of the state that the memory held before.

        `turn`: counts the states of a slot: an item that has not come is read itself when its turn is.
        """
        if self._begun is not None:
            raise SnapshotError(f"{self._items[self._next][1].key} came in part only")
        same_place = held is not None and held.layout == self._layout
        for index, item in enumerate(self._layout.items):
            if item.peers != UNIQUE or not item.nbytes:
                continue
            found = self._sums.get(index)
            if found is None and held is not None and same_place:
                found = held.checksums[index]
                if index % TURNS == turn % TURNS and checksum(self._data[item.offset : item.offset + item.nbytes]) != found:
                    raise SnapshotError(f"{item.key} was left as it lay, and is not what it was")
            if found is None:
                raise SnapshotError(f"{item.key} has not come, and is not held")
            if found != tables.checksums[index]:
                raise SnapshotError(f"{item.key} arrived with another checksum")
