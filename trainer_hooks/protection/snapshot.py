"""Writes a rank's snapshots: copies a state into the free slot of its vault, with a checksum for each item, and seals it.

The checksum of a group of items is taken as soon as they are copied, and the senders learn of it (outgoing.py). What lies in the
slot already is left there: an item that the process seems not to have written to since is read, and if its checksum is that of
the bytes in the slot, it is not copied. Version counters only say where it is worth looking; they do not see every write.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy
from numpy.typing import NDArray
from torch import Tensor

from deadpool.host.errors import SnapshotError
from deadpool.proto.vault.layout import TURNS, UNIQUE, Header, Item, Layout, Tables
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.boundary import Boundary, Captured
from deadpool.trainer_hooks.protection.copier import Copier, SlotMemory
from deadpool.trainer_hooks.protection.copy_engine import Engine, is_plain
from deadpool.trainer_hooks.protection.copy_groups import CopyGroup, groups_of, is_small
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.gather import Gather
from deadpool.trainer_hooks.protection.interval import Interval
from deadpool.trainer_hooks.protection.lanes import lanes_here
from deadpool.trainer_hooks.protection.outgoing import OutgoingState
from deadpool.trainer_hooks.protection.outside_writes import OutsideWrites
from deadpool.trainer_hooks.protection.peers import Peers, Sharing
from deadpool.trainer_hooks.protection.slots import OpenSlot, OwnSlots, capacity
from deadpool.trainer_hooks.state.items import Held, type_name
from deadpool.trainer_hooks.state.metadata import MetaPacker


@dataclass(slots=True, kw_only=True)
class Local:
    """What protection keeps in this process from one generation to the next.

    `slots()`: this rank's, made if they are not there yet (ConfigError: there is no room). `sharing`: who holds what as
    well. `lanes`: threads that copy a large state.
    """

    slots: Callable[[], OwnSlots]
    engine: Engine
    sharing: Sharing
    counters: Counters
    outside_writes: OutsideWrites = field(default_factory=OutsideWrites)
    interval: Interval = field(default_factory=lambda: Interval(1))
    lanes: int = field(default_factory=lanes_here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A state that is to be copied into a slot, which is unsealed. `header`: what it was sealed with. `before`: what it still
    has; `turn`: how many states in a row have found it there.
    """

    index: int
    boundary: Boundary
    places: "_Places"
    data_offset: int
    meta: bytes
    header: Header | None
    before: "Copied | None"
    turn: int

    @property
    def layout(self) -> Layout:
        return self.places.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A state that lies in a slot. In layout order: `sums`, of the items; `versions`, of the held tensors. `header`: of the state
    before whose layout may lie there still.
    """

    index: int
    state: StateId
    layout: Layout
    data_offset: int
    meta: bytes
    header: Header | None
    sums: Sequence[int]
    versions: NDArray[numpy.int64]
    turn: int

    def by_key(self) -> dict[str, int]:
        return {item.key: total for item, total in zip(self.layout.items, self.sums, strict=True)}


class SnapshotWriter:
    """For the protect thread alone."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._layout: _Places | None = None
        self._sources: _Sources | None = None
        self._packer = MetaPacker()
        self._sealed: dict[int, tuple[Header, Copied]] = {}  # by slot

    def place(self, boundary: Boundary, keep_steps: Sequence[int]) -> Placed:
        """Finds the slot that holds none of `keep_steps`, and makes it ready. ConfigError: there is no room for it to grow."""
        form = self._form(boundary.held)
        layout, meta = form.layout, self._packer.pack(boundary.meta)
        slot_bytes, data_offset = capacity(layout.data_bytes, len(layout.items), len(meta))
        slots = self._local.slots()
        index, header = slots.to_write(keep_steps, slot_bytes)
        sealed = self._sealed.pop(index, None)
        in_place = sealed is not None and sealed[0] == header and sealed[1].data_offset == data_offset
        before = sealed[1] if sealed is not None and in_place and sealed[1].layout is layout else None
        return Placed(
            index=index,
            boundary=boundary,
            places=form,
            data_offset=data_offset,
            meta=meta,
            header=header,
            before=before,
            turn=before.turn + 1 if before is not None else 0,
        )

    def copy(self, placed: Placed, outgoing: OutgoingState | None) -> Copied:
        """Copies S_k into its slot. SnapshotError: the sources may have changed meanwhile."""
        began = time.monotonic()
        boundary, places, slots = placed.boundary, placed.places, self._local.slots()
        layout = places.layout
        target = SlotMemory(
            tensors=slots.targets(placed.index, layout, placed.data_offset),
            data=slots.data(placed.index, placed.data_offset, layout),
            file=slots.file(placed.index),
            offset=placed.data_offset,
        )
        if self._sources is None or not self._sources.is_of(boundary.captured, places):
            self._sources = _Sources(boundary.captured, places)
        sources, addresses = self._sources.now(boundary)
        copier = Copier(
            self._local.engine,
            layout,
            sources=sources,
            addresses=addresses,
            target=target,
            outgoing=outgoing,
            turn=placed.turn,
            point=boundary.point,
            lanes=self._local.lanes,
        )
        if boundary.watched:
            boundary.copies = [target.tensors[place] for place in places.place]
        versions = boundary.versions[places.order]

        def fence_opens() -> None:
            touched.extend(boundary.touched())
            boundary.copied.set()

        touched: list[str] = []
        copier.run(places.groups, places.gathers, self._seem_unchanged(placed, versions), fence_opens)
        counters, sums = self._local.counters, copier.landing.sums
        counters.copied_bytes += copier.landing.copied_bytes
        counters.copy_s += time.monotonic() - began
        if not self._local.engine.is_true(boundary.point):
            raise SnapshotError("the groups were aborted before the device had come to the end of this step")
        doubts = self._local.outside_writes.doubts(boundary, lambda index: sums[places.place[index]], touched)
        if doubts:
            raise SnapshotError(f"{doubts[0]} may have been changed while it was copied, outside of optimizer.step")
        return Copied(
            index=placed.index,
            state=boundary.state,
            layout=layout,
            data_offset=placed.data_offset,
            meta=placed.meta,
            header=placed.header if placed.turn % TURNS else None,
            sums=sums,
            versions=versions,
            turn=placed.turn,
        )

    def _seem_unchanged(self, placed: Placed, versions: NDArray[numpy.int64]) -> dict[int, int]:
        """Returns the checksums of the items that may still be in the slot as they are now, by index.

        Those of which no write is known since: neither by their version, nor by another checksum in the newest state.
        """
        before = placed.before
        if before is None:
            return {}
        newest = max((copied for _, copied in self._sealed.values()), key=lambda copied: copied.state, default=before)
        if newest.layout is not placed.layout:
            return {}
        same: list[int] = numpy.flatnonzero(versions == before.versions).tolist()
        return {index: before.sums[index] for index in same if newest.sums[index] == before.sums[index]}

    def agree(self, sharing: Sharing) -> None:
        """From now on this is who holds what as well."""
        self._local.sharing = sharing
        self._layout = None

    def seal(self, copied: Copied) -> OpenSlot:
        """Seals the state in its slot, with the peers that are agreed on now: no data moves for them, unique items may lie
        anywhere.
        """
        layout = copied.layout
        if self._layout is None or self._layout.layout is not layout:
            layout = layout.with_peers(self._local.sharing.relied_on)
        tables = Tables(layout=layout, meta=copied.meta, checksums=copied.sums)
        slot = self._local.slots().seal(copied.index, copied.state, tables, copied.data_offset, copied.header)
        self._sealed[copied.index] = slot.header, copied
        return slot

    def _form(self, held: list[Held]) -> "_Places":
        """Returns where these items lie in a slot."""
        form = self._layout
        if form is not None and form.held is not held and _have_same_form(form.held, held):
            form = replace(form, held=held)  # parameters that are given other memory in each step
        if form is None or form.held is not held:
            form = _Places.of(held, layout_of(held, self._local.sharing.relied_on), self._local.engine.group_bytes)
        self._layout = form
        return form


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where the items of a state lie. `groups`: of items that are copied together; `gathers`: of those groups whose tensors, as
    they are held, can be gathered. `order`: for each item of the layout its index among the held ones; `place`: the other way.
    """

    held: list[Held]
    layout: Layout
    groups: list[CopyGroup]
    gathers: list[Gather | None]
    order: NDArray[numpy.intp]
    place: Sequence[int]

    @classmethod
    def of(cls, held: list[Held], layout: Layout, group_bytes: int) -> "_Places":
        index = {each.key: i for i, each in enumerate(held)}
        order = [index[item.key] for item in layout.items]
        groups = groups_of(layout, group_bytes)

        def may_be_gathered(group: CopyGroup) -> bool:
            return group.small and all(_is_gatherable(held[i].tensor) for i in order[group.first : group.last])

        return cls(
            held=held,
            layout=layout,
            groups=groups,
            gathers=[Gather(group.items) if may_be_gathered(group) else None for group in groups],
            order=numpy.array(order, dtype=numpy.intp),
            place=sorted(range(len(order)), key=order.__getitem__),
        )


class _Sources:
    """What to copy of one state after the other, in layout order, as long as the same tensors are held."""

    def __init__(self, captured: Captured, places: _Places) -> None:
        self._captured, self._places = captured, places
        self._tensors = [captured.tensors[index] for index in places.order]
        self._addresses = captured.addresses[places.order]

    def is_of(self, captured: Captured, places: _Places) -> bool:
        return self._captured is captured and self._places is places

    def now(self, boundary: Boundary) -> tuple[Sequence[Tensor], NDArray[numpy.uint64]]:
        """Returns the sources, and the addresses of their memory."""
        cloned = self._captured.cloned
        if not cloned:
            return self._tensors, self._addresses
        tensors, addresses = self._tensors.copy(), self._addresses.copy()
        for index in cloned:
            place, clone = self._places.place[index], boundary.sources[index]
            tensors[place], addresses[place] = clone, clone.data_ptr()
        return tensors, addresses


def _is_gatherable(tensor: Tensor) -> bool:
    """Returns whether its memory, and that of a clone, is its bytes in order, for the host to read."""
    return is_plain(tensor) and tensor.device.type == "cpu"


def _have_same_form(one: Sequence[Held], other: Sequence[Held]) -> bool:
    forms = [
        [(each.key, each.tensor.shape, each.tensor.dtype, _is_gatherable(each.tensor)) for each in held] for held in (one, other)
    ]
    return forms[0] == forms[1]


def layout_of(held: Sequence[Held], peers: Peers) -> Layout:
    sets = sorted({peers.get(each.key, ()) for each in held} - {()})
    index = {peer_set: i for i, peer_set in enumerate(sets)}
    items = (
        Item(
            key=each.key,
            offset=0,
            nbytes=each.tensor.numel() * each.tensor.element_size(),
            dtype=type_name(each.tensor.dtype),
            shape=tuple(each.tensor.shape),
            peers=index.get(peers.get(each.key, ()), UNIQUE),
        )
        for each in sorted(held, key=lambda each: is_small(each.tensor.nbytes))  # those that can be gathered side by side
    )
    return Layout.place(items, sets)
