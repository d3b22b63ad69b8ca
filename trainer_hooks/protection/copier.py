"""Copies one state into its slot, group by group: the bytes of a group are in the cache when its checksum is taken.

From a device all copies are begun first, the training may go on, and each group's checksum is taken when it has landed: of a
large tensor, part by part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import xxhash
from torch import Tensor

from deadpool.proto.vault.layout import TURNS, Layout, checksum
from deadpool.trainer_hooks.protection.copy_engine import Engine, Point, Ticket, as_bytes, copy_bytes, is_plain
from deadpool.trainer_hooks.protection.outgoing import OutgoingState

STEP_BYTES = 1 << 20  # of a large tensor, copied and then read again


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """Items [first, last); or, where there is an `end`, these bytes of the one item."""

    ticket: Ticket
    first: int
    last: int
    begin: int = 0
    end: int = 0


class Copier:
    """For one state. `sources`, `targets`: in layout order; `data`: of the slot. `turn`: counts the states of
    the slot. `sums`: of the items done so far."""

    def __init__(
        self,
        engine: Engine,
        layout: Layout,
        *,
        sources: Sequence[Tensor],
        targets: Sequence[Tensor],
        data: memoryview,
        outgoing: OutgoingState | None,
        turn: int,
        point: Point,
    ) -> None:
        self.sums: list[int] = []
        self.copied_bytes = 0
        self._total = xxhash.xxh3_64()  # of the large item under way
        self._engine, self._layout = engine, layout
        self._sources, self._targets, self._data, self._outgoing = sources, targets, data, outgoing
        self._turn, self._point = turn % TURNS, point

    def run(self, groups: Sequence[tuple[int, int]], unchanged: Mapping[int, int], copied: Callable[[], None]) -> None:
        """Copies all groups. `unchanged`: checksums of the items that may be in the slot already; `copied`: called as soon as
        the sources may change.
        """
        if self._engine.copies_later:
            under_way = [part for first, last in groups for part in self._begun(first, last)]
            copied()
            for part in under_way:
                self._follow(part)
            self.copied_bytes = sum(item.nbytes for item in self._layout.items)
            return
        for first, last in groups:
            if last == first + 1 and self._layout.items[first].nbytes > STEP_BYTES:
                self._copy_large(first, unchanged.get(first))
            else:
                self._copy_group(first, last, unchanged)
        copied()

    def _begun(self, first: int, last: int) -> list["_UnderWay"]:
        """Begins to copy these items, a large one in parts."""
        item, source, size = self._layout.items[first], self._sources[first], self._engine.group_bytes
        if last > first + 1 or item.nbytes <= size or not is_plain(source):
            ticket = self._engine.copy(self._sources[first:last], self._targets[first:last], self._point)
            return [_UnderWay(ticket, first, last)]
        raw, target = as_bytes(source), as_bytes(self._targets[first])
        ends = [min(item.nbytes, begin + size) for begin in range(0, item.nbytes, size)]
        return [
            _UnderWay(self._engine.copy([raw[begin:end]], [target[begin:end]], self._point), first, last, begin, end)
            for begin, end in zip([0, *ends], ends, strict=False)
        ]

    def _follow(self, part: "_UnderWay") -> None:
        self._engine.landed(part.ticket)
        if part.end == 0:
            self._landed(part.first, part.last, [self._sum(index) for index in range(part.first, part.last)])
            return
        if part.begin == 0:
            self._total = xxhash.xxh3_64()
        self._part_landed(part.first, part.begin, part.end)

    def _part_landed(self, index: int, begin: int, end: int) -> None:
        """These bytes of a large item lie in the slot, and so do those before them."""
        item = self._layout.items[index]
        self._total.update(self._data[item.offset + begin : item.offset + end])
        if self._outgoing is not None:
            self._outgoing.part_landed(index, item.offset + begin, item.offset + end)
        if end == item.nbytes:
            self.sums.append(self._total.intdigest())
            if self._outgoing is not None:
                self._outgoing.item_landed(self.sums[-1])

    def _copy_group(self, first: int, last: int, unchanged: Mapping[int, int]) -> None:
        left = {
            index: unchanged[index]
            for index in (range(first, last) if unchanged else ())
            if index in unchanged and self._is_there(index, self._engine.in_place(self._sources[index]), unchanged[index])
        }
        wanted = [index for index in range(first, last) if index not in left] if left else range(first, last)
        self._engine.copy([self._sources[index] for index in wanted], [self._targets[index] for index in wanted], self._point)
        self.copied_bytes += sum(self._layout.items[index].nbytes for index in wanted)
        self._landed(first, last, [left[index] if index in left else self._sum(index) for index in range(first, last)])

    def _copy_large(self, index: int, expected: int | None) -> None:
        item, source = self._layout.items[index], self._engine.in_place(self._sources[index])
        if source is None:
            self._copy_group(index, index + 1, {})
            return
        if expected is not None and self._is_there(index, source, expected):
            self._landed(index, index + 1, [expected])
            return
        self._total, target = xxhash.xxh3_64(), self._data[item.offset : item.offset + item.nbytes]
        for begin in range(0, item.nbytes, STEP_BYTES):
            end = min(item.nbytes, begin + STEP_BYTES)
            copy_bytes(source[begin:end], target[begin:end])
            self._part_landed(index, begin, end)
        self.copied_bytes += item.nbytes

    def _landed(self, first: int, last: int, sums: list[int]) -> None:
        self.sums += sums
        if self._outgoing is not None:
            self._outgoing.landed(first, last, sums)

    def _is_there(self, index: int, source: memoryview | None, expected: int) -> bool:
        """Returns whether the source still has the bytes of this checksum, and so has the slot, which is read in turns."""
        if source is None or checksum(source) != expected:
            return False
        return index % TURNS != self._turn or self._sum(index) == expected

    def _sum(self, index: int) -> int:
        item = self._layout.items[index]
        return checksum(self._data[item.offset : item.offset + item.nbytes])
