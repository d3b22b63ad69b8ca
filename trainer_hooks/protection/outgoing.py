"""A state on its way to the holders of its replicas, while it is still being copied into the rank's own slot.

The protect thread says which items lie in the slot (`landed`, `part_landed`), in the order of the layout, and at last that the
slot is sealed. The senders, a thread for each holder, follow; one that has to begin again does so from the first part.
"""

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from deadpool.host.errors import SnapshotError
from deadpool.proto.vault.layout import SUM_BYTES, Layout, replica_of
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import SlotPart
from deadpool.proto.vault.wire import RUNS_MAX, Put
from deadpool.trainer_hooks.protection.copy_groups import CopyGroup, groups_of
from deadpool.trainer_hooks.protection.slots import OpenSlot

WHOLE_BYTES = 4 << 20  # of a replica that is sent whole: the holder may refuse it when all is under way
QUESTION_BYTES = 512 << 10  # sent and received in the time that it takes to ask what need not be
_PIECE_BYTES = 16 << 10  # sent and received in the time that a piece of its own takes
_FEW = 4  # the share of a group's items, one in so many, that is worth picking out because the holder has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What a holder has acknowledged: the checksums of a replica's items, in the order of its layout."""

    layout: Layout
    items: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Which state travels. `keep_step`: the newest commit; `sender_generation`: the one in which the sender runs."""

    rank: int
    state: StateId
    keep_step: int
    sender_generation: int


@dataclass(frozen=True, slots=True)
class _Landed:
    """A group, whole; or bytes [begin, end) of the data, of the one item that the group has."""

    group: CopyGroup
    begin: int = 0
    end: int = 0


class OutgoingState:
    """`data`: of the slot at `path`, mapped."""

    def __init__(self, stamp: Stamp, layout: Layout, *, meta_bytes: int, path: Path, data: memoryview, data_offset: int) -> None:
        self._layout, self._replica = layout, layout.of_replica()
        self._path, self._data, self._data_offset = path, data, data_offset
        self.layout = self._replica.to_bytes()
        self.request = Put(
            rank=stamp.rank,
            generation=stamp.state.generation,
            step=stamp.state.step,
            keep_step=stamp.keep_step,
            data_offset=data_offset,
            data_bytes=layout.unique_bytes,
            layout_bytes=len(self.layout),
            tables_bytes=len(self.layout) + meta_bytes + SUM_BYTES * len(layout.items),
            layout_checksum=self._replica.digest,
            sender_generation=stamp.sender_generation,
        )
        self._sums: list[int] = []
        self._landed: list[_Landed] = []
        self._tail: tuple[bytes, bytes] | None = None
        self._refused = False
        self._changed = threading.Condition()

    @classmethod
    def of(cls, slot: OpenSlot, stamp: Stamp) -> "OutgoingState":
        """Returns a state that lies in its slot, sealed."""
        layout, meta_bytes = slot.tables.layout, len(slot.tables.meta)
        outgoing = cls(stamp, layout, meta_bytes=meta_bytes, path=slot.path, data=slot.data, data_offset=slot.header.data_offset)
        outgoing._sums = [*slot.tables.checksums]
        outgoing._landed = [_Landed(group) for group in groups_of(layout) if group.unique]
        outgoing._tail = _tail_of(slot)
        return outgoing

    @property
    def slot_bytes(self) -> int:
        """What a holder's slot needs."""
        return self.request.data_offset + self.request.data_bytes

    # ------------------------------------------------------------ protect thread

    def landed(self, group: CopyGroup, sums: Sequence[int]) -> None:
        """The group's items lie in the slot."""
        with self._changed:
            self._sums.extend(sums)
            if group.unique:
                self._landed.append(_Landed(group))
                self._changed.notify_all()

    def part_landed(self, group: CopyGroup, begin: int, end: int) -> None:
        """These bytes of the group's item lie in the slot. All of it travels."""
        if group.unique:
            with self._changed:
                self._landed.append(_Landed(group, begin, end))
                self._changed.notify_all()

    def item_landed(self, total: int) -> None:
        """The item whose parts have landed is whole."""
        with self._changed:
            self._sums.append(total)

    def sealed(self, slot: OpenSlot) -> None:
        with self._changed:
            self._tail = _tail_of(slot)
            self._changed.notify_all()

    def give_up(self) -> None:
        """The state is not sealed, and never will be; nothing happens when it is."""
        with self._changed:
            self._refused = self._tail is None
            self._changed.notify_all()

    # ------------------------------------------------------------ senders

    def sums(self) -> Sums:
        """Returns what a holder of all of it holds."""
        return Sums(layout=self._replica, items=self._sums)

    def whole(self, newest: Sums | None) -> list[memoryview] | None:
        """Returns what transport.Outgoing says. `newest`: what the holder has acknowledged last.

        What is the same there is mostly the same in the state before, which the holder would name: where that is much, the
        question is worth its time.
        """
        runs = self._layout.unique_runs()
        if self._tail is None or self.request.data_bytes > WHOLE_BYTES or len(runs) > RUNS_MAX:
            return None
        if newest is not None and self.request.data_bytes > QUESTION_BYTES and self._same_bytes(newest) > QUESTION_BYTES:
            return None
        return [self._data[begin:end] for begin, end in runs]

    def _same_bytes(self, held: Sums) -> int:
        """Returns how many bytes of the unique items are the same in what is held."""
        if held.layout.digest != self._replica.digest:
            return 0
        groups = [each.group for each in self._landed]
        same = (map(operator.eq, self._sums[each.first : each.last], held.items[each.first : each.last]) for each in groups)
        return sum(sum(compress(group.sizes, each)) for group, each in zip(groups, same, strict=True))

    def parts(self, held: Sums | None) -> Iterator[SlotPart]:
        """Yields what a holder needs whose slot holds this (transport.Outgoing)."""
        known = held.items if held is not None and held.layout.digest == self._replica.digest else None
        count = 0
        while landed := self._landed_since(count):
            count += len(landed)
            for each in landed:
                if each.end:
                    yield self._part(each.group.first, each.begin, each.end)
                else:
                    yield from self._needed(each.group, known)

    def tail(self) -> tuple[bytes, bytes]:
        assert self._tail is not None
        return self._tail

    def _landed_since(self, count: int) -> list[_Landed]:
        """Returns what has landed behind the first `count`, once anything has; [] when that was all."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._landed) > count or self._tail is not None or self._refused)
            if self._refused:
                raise SnapshotError(f"step {self.request.step}: its copy has come to nothing")
            return self._landed[count:]

    def _needed(self, group: CopyGroup, known: Sequence[int] | None) -> Iterator[SlotPart]:
        """Yields what is not the same in what is held: neighbours together, with what lies between them."""
        first, last = group.first, group.last
        if known is not None:
            differ = list(map(operator.ne, self._sums[first:last], known[first:last]))
            if sum(differ) * _FEW <= (_FEW - 1) * len(differ):
                for begin, end in _ranges(compress(range(first, last), differ), self._is_gap):
                    yield from self._items(begin, end)
                return
        yield from self._items(first, last)

    def _is_gap(self, end: int, begin: int) -> bool:
        """Returns whether it pays not to send what lies between the items [..., end) and [begin, ...)."""
        items = self._layout.items
        return items[begin].offset - items[end - 1].offset - items[end - 1].nbytes > _PIECE_BYTES

    def _items(self, first: int, last: int) -> Iterator[SlotPart]:
        items = self._layout.items
        begin, end = items[first].offset, items[last - 1].offset + items[last - 1].nbytes
        if end > begin:
            yield self._part(first, begin, end)

    def _part(self, index: int, begin: int, end: int) -> SlotPart:
        moved = self._replica.items[index].offset - self._layout.items[index].offset
        return SlotPart(path=self._path, offset=self._data_offset + begin, view=self._data[begin:end], to_offset=begin + moved)


def _tail_of(slot: OpenSlot) -> tuple[bytes, bytes]:
    """Returns the rest of the replica's tables, and its header page."""
    rest = bytes(slot.raw_tables[slot.header.layout_bytes :])
    return rest, replica_of(slot.header, slot.tables.layout).to_page()


def _ranges(indices: Iterable[int], is_gap: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """Yields [first, last) that these indices lie in, apart where there is a gap between what ends and what begins there."""
    first = last = -1
    for index in indices:
        if first < 0:
            first = index
        elif index != last and is_gap(last, index):
            yield first, last
            first = index
        last = index + 1
    if first >= 0:
        yield first, last
