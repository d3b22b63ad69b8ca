"""Copies one state into its slot, group by group: the bytes of a group are in the cache when its checksum is taken.

Small tensors that the host reads itself are gathered (gather.py). Where this process has several cores, several threads copy
(lanes.py).

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
from deadpool.trainer_hooks.protection.lanes import Landing, lanes_for, run_lanes
from deadpool.trainer_hooks.protection.outgoing import OutgoingState

STEP_BYTES = 1 << 20  # of a large tensor, copied, read again, and handed on: lanes wait for the interpreter's lock in between


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """Of a group: all of it; or, where there is an `end`, these bytes of its one item."""

    ticket: Ticket
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
    """For one state. `sources`: in layout order, and the `addresses` of their memory. `turn`: counts the states of the slot;
    `lanes`: threads that may copy. `landing`: what it has copied so far.
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
        lanes: int = 1,
    ) -> None:
        self.landing = Landing(outgoing)
        self._engine, self._layout = engine, layout
        self._sources, self._addresses = sources, addresses
        self._target, self._data = target, target.data
        self._lanes = lanes_for(layout.data_bytes, lanes, sends=outgoing is not None)
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
            under_way = [self._begun(group) for group in groups]
            copied()
            run_lanes(self._lanes, len(groups), lambda number: self._follow(number, groups[number], under_way[number]))
            return

        def copy(number: int) -> None:
            group, gather = groups[number], gathers[number]
            if group.nbytes > STEP_BYTES and len(group.items) == 1:
                self._copy_large(number, group, unchanged.get(group.first))
            elif unchanged and self._may_be_left(group, unchanged, gather):
                self._copy_changed(number, group, unchanged)
            else:
                self._copy_group(number, group, gather)

        run_lanes(self._lanes, len(groups), copy)
        copied()

    def _begun(self, group: CopyGroup) -> list[_UnderWay]:
        """Begins to copy these items, a large one in parts."""
        first, source, size = group.first, self._sources[group.first], self._engine.group_bytes
        if len(group.items) > 1 or group.nbytes <= size or not is_plain(source):
            return [_UnderWay(self._copy(first, group.last))]
        raw, target = as_bytes(source), as_bytes(self._target.tensors[first])
        ends = [min(group.nbytes, begin + size) for begin in range(0, group.nbytes, size)]
        return [
            _UnderWay(self._engine.copy([raw[begin:end]], [target[begin:end]], self._point), begin, end)
            for begin, end in zip([0, *ends], ends, strict=False)
        ]

    def _follow(self, number: int, group: CopyGroup, parts: Sequence[_UnderWay]) -> None:
        """Takes the checksums of what has left the device."""
        if not parts[0].end:
            self._engine.landed(parts[0].ticket)
            self.landing.group(number, group, checksums(self._data, group.slices), group.nbytes)
            return
        total = xxhash.xxh3_64()
        for part in parts:
            self._engine.landed(part.ticket)
            begin, end = group.begin + part.begin, group.begin + part.end
            total.update(self._data[begin:end])
            self.landing.part(number, group, begin, end)
        self.landing.item(number, total.intdigest(), group.nbytes)

    def _may_be_left(self, group: CopyGroup, unchanged: Mapping[int, int], gather: Gather | None) -> bool:
        """Returns whether to look which items are in the slot already. Small ones are copied in less time, if any of them is."""
        indices = range(group.first, group.last)
        return all(map(unchanged.__contains__, indices)) if gather else any(map(unchanged.__contains__, indices))

    def _copy(self, first: int, last: int) -> Ticket:
        return self._engine.copy(self._sources[first:last], self._target.tensors[first:last], self._point)

    def _copy_group(self, number: int, group: CopyGroup, gather: Gather | None) -> None:
        if gather is None:
            self._copy(group.first, group.last)
        else:
            target = self._target
            self._engine.gather(gather, self._addresses[group.first : group.last], target.file, target.offset + group.begin)
        self.landing.group(number, group, checksums(self._data, group.slices), group.nbytes)

    def _copy_changed(self, number: int, group: CopyGroup, unchanged: Mapping[int, int]) -> None:
        sums, copied_bytes = [], 0
        for index, item in enumerate(group.items, group.first):
            expected = unchanged.get(index)
            if expected is None or not self._is_there(index, self._engine.in_place(self._sources[index]), expected):
                self._copy(index, index + 1)
                copied_bytes += item.nbytes
                expected = self._sum(index)
            sums.append(expected)
        self.landing.group(number, group, sums, copied_bytes)

    def _copy_large(self, number: int, group: CopyGroup, expected: int | None) -> None:
        index, item = group.first, group.items[0]
        source = self._engine.in_place(self._sources[index])
        if source is None:
            self._copy_group(number, group, None)
            return
        if expected is not None and self._is_there(index, source, expected):
            self.landing.group(number, group, [expected], 0)
            return
        total = xxhash.xxh3_64()
        data = self._data[item.offset : item.offset + item.nbytes]
        from_, to = address_of(source), address_of(data)
        for begin in range(0, item.nbytes, STEP_BYTES):
            end = min(item.nbytes, begin + STEP_BYTES)
            copy_bytes(from_ + begin, to + begin, end - begin)
            total.update(data[begin:end])
            self.landing.part(number, group, item.offset + begin, item.offset + end)
        self.landing.item(number, total.intdigest(), item.nbytes)

    def _is_there(self, index: int, source: memoryview | None, expected: int) -> bool:
        """Returns whether the source still has the bytes of this checksum, and so has the slot, which is read in turns."""
        if source is None or checksum(source) != expected:
            return False
        return index % TURNS != self._turn or self._sum(index) == expected

    def _sum(self, index: int) -> int:
        item = self._layout.items[index]
        return checksum(self._data[item.offset : item.offset + item.nbytes])
