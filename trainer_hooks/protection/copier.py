"""Copies one state into its slot, group by group: the bytes of a group are in the cache when its checksum is taken.

Small tensors that the host reads itself are gathered (gather.py).

From a device all copies are begun first, the training may go on, and each group's checksum is taken when it has landed: of a
large tensor, part by part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from deadpool.proto.vault.layout import TURNS, Layout, checksum, checksums
from deadpool.trainer_hooks.protection.copy_engine import Engine, Point, Ticket, address_of, as_bytes, copy_bytes, is_plain
from deadpool.trainer_hooks.protection.copy_groups import CopyGroup
from deadpool.trainer_hooks.protection.gather import Gather
from deadpool.trainer_hooks.protection.outgoing import OutgoingState

STEP_BYTES = 256 << 10  # of a large tensor, copied and then read again: bytes and copy stay in half of a core's second cache
PART_BYTES = 512 << 10  # of a large tensor, after which the senders hear that it has landed


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A group; or, where there is an `end`, these bytes of its one item."""

    ticket: Ticket
    group: CopyGroup
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMemory:
    """The memory of a slot: `tensors` over it, in layout order; `data`: all of them; `file`: the same, open, from `offset` on."""

    tensors: Sequence[Tensor]
    data: memoryview
    file: int
    offset: int


class Copier:
    """For one state. `sources`: in layout order, and the `addresses` of their memory. `turn`: counts the states of the slot.

    `sums`: of the items done so far.
    """

    def __init__(
        self,
        engine: Engine,
        layout: Layout,
        *,
        sources: Sequence[Tensor],
        addresses: NDArray[numpy.uint64],
        target: SlotMemory,
        outgoing: OutgoingState | None,
        turn: int,
        point: Point,
    ) -> None:
        self.sums: list[int] = []
        self.copied_bytes = 0
        self._total = xxhash.xxh3_64()  # of the large item under way
        self._engine, self._layout = engine, layout
        self._sources, self._addresses = sources, addresses
        self._target, self._data, self._outgoing = target, target.data, outgoing
        self._turn, self._point = turn % TURNS, point

    def run(
        self,
        groups: Sequence[CopyGroup],
        gathers: Sequence[Gather | None],
        unchanged: Mapping[int, int],
        copied: Callable[[], None],
    ) -> None:
        """Copies all groups. `gathers`: of those whose sources can be gathered; `unchanged`: checksums of the items that may be
        in the slot already; `copied`: called as soon as the sources may change.
        """
        if self._engine.copies_later:
            under_way = [part for group in groups for part in self._begun(group)]
            copied()
            for part in under_way:
                self._follow(part)
            self.copied_bytes = sum(group.nbytes for group in groups)
            return
        for group, gather in zip(groups, gathers, strict=True):
            if group.nbytes > STEP_BYTES and len(group.items) == 1:
                self._copy_large(group, unchanged.get(group.first))
            elif unchanged and self._may_be_left(group, unchanged, gather):
                self._copy_changed(group, unchanged)
            else:
                self._copy_group(group, gather)
        copied()

    def _begun(self, group: CopyGroup) -> list[_UnderWay]:
        """Begins to copy these items, a large one in parts."""
        first, source, size = group.first, self._sources[group.first], self._engine.group_bytes
        if len(group.items) > 1 or group.nbytes <= size or not is_plain(source):
            return [_UnderWay(self._copy(first, group.last), group)]
        raw, target = as_bytes(source), as_bytes(self._target.tensors[first])
        ends = [min(group.nbytes, begin + size) for begin in range(0, group.nbytes, size)]
        return [
            _UnderWay(self._engine.copy([raw[begin:end]], [target[begin:end]], self._point), group, begin, end)
            for begin, end in zip([0, *ends], ends, strict=False)
        ]

    def _follow(self, part: _UnderWay) -> None:
        self._engine.landed(part.ticket)
        if part.end == 0:
            self._landed(part.group, checksums(self._data, part.group.slices))
            return
        if part.begin == 0:
            self._total = xxhash.xxh3_64()
        offset = part.group.begin
        self._total.update(self._data[offset + part.begin : offset + part.end])
        self._part_landed(part.group, part.begin, part.end)

    def _part_landed(self, group: CopyGroup, begin: int, end: int) -> None:
        """These bytes of a large item lie in the slot, and so do those before them; the checksum has all of them."""
        item = group.items[0]
        if self._outgoing is not None:
            self._outgoing.part_landed(group, item.offset + begin, item.offset + end)
        if end == item.nbytes:
            self.sums.append(self._total.intdigest())
            if self._outgoing is not None:
                self._outgoing.item_landed(self.sums[-1])

    def _may_be_left(self, group: CopyGroup, unchanged: Mapping[int, int], gather: Gather | None) -> bool:
        """Returns whether to look which items are in the slot already. Small ones are copied in less time, if any of them is."""
        indices = range(group.first, group.last)
        return all(map(unchanged.__contains__, indices)) if gather else any(map(unchanged.__contains__, indices))

    def _copy(self, first: int, last: int) -> Ticket:
        return self._engine.copy(self._sources[first:last], self._target.tensors[first:last], self._point)

    def _copy_group(self, group: CopyGroup, gather: Gather | None) -> None:
        if gather is None:
            self._copy(group.first, group.last)
        else:
            target = self._target
            self._engine.gather(gather, self._addresses[group.first : group.last], target.file, target.offset + group.begin)
        self.copied_bytes += group.nbytes
        self._landed(group, checksums(self._data, group.slices))

    def _copy_changed(self, group: CopyGroup, unchanged: Mapping[int, int]) -> None:
        sums = []
        for index, item in enumerate(group.items, group.first):
            expected = unchanged.get(index)
            if expected is None or not self._is_there(index, self._engine.in_place(self._sources[index]), expected):
                self._copy(index, index + 1)
                self.copied_bytes += item.nbytes
                expected = self._sum(index)
            sums.append(expected)
        self._landed(group, sums)

    def _copy_large(self, group: CopyGroup, expected: int | None) -> None:
        index, item = group.first, group.items[0]
        source = self._engine.in_place(self._sources[index])
        if source is None:
            self._copy_group(group, None)
            return
        if expected is not None and self._is_there(index, source, expected):
            self._landed(group, [expected])
            return
        self._total = total = xxhash.xxh3_64()
        data = self._data[item.offset : item.offset + item.nbytes]
        from_, to = address_of(source), address_of(data)
        part_bytes = PART_BYTES if self._outgoing is not None and group.unique else item.nbytes
        for begin in range(0, item.nbytes, part_bytes):
            end = min(item.nbytes, begin + part_bytes)
            for at in range(begin, end, STEP_BYTES):
                upto = min(end, at + STEP_BYTES)
                copy_bytes(from_ + at, to + at, upto - at)
                total.update(data[at:upto])
            self._part_landed(group, begin, end)
        self.copied_bytes += item.nbytes

    def _landed(self, group: CopyGroup, sums: list[int]) -> None:
        self.sums += sums
        if self._outgoing is not None:
            self._outgoing.landed(group, sums)

    def _is_there(self, index: int, source: memoryview | None, expected: int) -> bool:
        """Returns whether the source still has the bytes of this checksum, and so has the slot, which is read in turns."""
        if source is None or checksum(source) != expected:
            return False
        return index % TURNS != self._turn or self._sum(index) == expected

    def _sum(self, index: int) -> int:
        item = self._layout.items[index]
        return checksum(self._data[item.offset : item.offset + item.nbytes])
