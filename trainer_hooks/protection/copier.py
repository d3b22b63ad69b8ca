"""Copies one state into its slot, group by group: the bytes of a group are in the cache when its checksum is taken.

On CUDA all copies are enqueued first, the training may go on, and each group's checksum is taken when it has landed.
"""

from collections.abc import Callable, Mapping, Sequence

import xxhash
from torch import Tensor

from deadpool.proto.vault.layout import TURNS, Layout, checksum
from deadpool.trainer_hooks.protection.copy_engine import Engine, copy_bytes
from deadpool.trainer_hooks.protection.outgoing import OutgoingState

STEP_BYTES = 1 << 20  # of a large tensor, copied and then read again


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
    ) -> None:
        self.sums: list[int] = []
        self.copied_bytes = 0
        self._engine, self._layout = engine, layout
        self._sources, self._targets, self._data, self._outgoing = sources, targets, data, outgoing
        self._turn = turn % TURNS

    def run(self, groups: Sequence[tuple[int, int]], unchanged: Mapping[int, int], copied: Callable[[], None]) -> None:
        """Copies all groups. `unchanged`: checksums of the items that may be in the slot already; `copied`: called as soon as
        the sources may change.
        """
        if self._engine.copies_later:
            tickets = [self._engine.copy(self._sources[first:last], self._targets[first:last]) for first, last in groups]
            copied()
            for ticket, (first, last) in zip(tickets, groups, strict=True):
                self._engine.landed(ticket)
                self._landed(first, last, [self._sum(index) for index in range(first, last)])
            self.copied_bytes = sum(item.nbytes for item in self._layout.items)
            return
        for first, last in groups:
            if last == first + 1 and self._layout.items[first].nbytes > STEP_BYTES:
                self._copy_large(first, unchanged.get(first))
            else:
                self._copy_group(first, last, unchanged)
        copied()

    def _copy_group(self, first: int, last: int, unchanged: Mapping[int, int]) -> None:
        left = {
            index: unchanged[index]
            for index in (range(first, last) if unchanged else ())
            if index in unchanged and self._is_there(index, self._engine.in_place(self._sources[index]), unchanged[index])
        }
        wanted = [index for index in range(first, last) if index not in left] if left else range(first, last)
        self._engine.copy([self._sources[index] for index in wanted], [self._targets[index] for index in wanted])
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
        total, target = xxhash.xxh3_64(), self._data[item.offset : item.offset + item.nbytes]
        for begin in range(0, item.nbytes, STEP_BYTES):
            end = min(item.nbytes, begin + STEP_BYTES)
            copy_bytes(source[begin:end], target[begin:end])
            total.update(target[begin:end])
            if self._outgoing is not None:
                self._outgoing.part_landed(index, item.offset + begin, item.offset + end)
        self.copied_bytes += item.nbytes
        self.sums.append(total.intdigest())
        if self._outgoing is not None:
            self._outgoing.item_landed(self.sums[-1])

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
