"""Writes a rank's snapshots: copies a state into the free slot of its vault, with a checksum for each item, and seals it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deadpool.host.errors import SnapshotError
from deadpool.proto.vault.layout import UNIQUE, Item, Layout, checksum
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.boundary import Boundary
from deadpool.trainer_hooks.protection.copy_engine import Engine
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.outside_writes import OutsideWrites
from deadpool.trainer_hooks.protection.peers import Peers, Sharing
from deadpool.trainer_hooks.protection.slots import OpenSlot, OwnSlots, capacity
from deadpool.trainer_hooks.state.items import Held, type_name
from deadpool.trainer_hooks.state.metadata import pack_meta

CHUNK_BYTES = 32 << 20


@dataclass(slots=True, kw_only=True)
class Local:
    """What protection keeps in this process from one generation to the next.

    `slots()`: this rank's, made if they are not there yet (ConfigError: there is no room). `sharing`: who holds what as
    well.
    """

    slots: Callable[[], OwnSlots]
    engine: Engine
    sharing: Sharing
    counters: Counters
    outside_writes: OutsideWrites = field(default_factory=OutsideWrites)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A state that lies in a slot, not sealed yet. `sums`: of each item, in layout order."""

    index: int
    state: StateId
    layout: Layout
    data_offset: int
    meta: bytes
    sums: list[int]

    def by_key(self) -> dict[str, int]:
        return {item.key: total for item, total in zip(self.layout.items, self.sums, strict=True)}


class SnapshotWriter:
    """For the protect thread alone."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._layout: tuple[list[Held], Layout, list[int], list[int]] | None = None

    def copy(self, boundary: Boundary, keep_steps: Sequence[int]) -> Copied:
        """Copies S_k into the slot that holds none of `keep_steps`.

        SnapshotError: the sources may have changed meanwhile. ConfigError: there is no room for the slot to grow.
        """
        began = time.monotonic()
        engine, counters = self._local.engine, self._local.counters
        layout, order, place = self._place(boundary.held)
        meta = pack_meta(boundary.meta)
        slot_bytes, data_offset = capacity(layout.data_bytes, len(layout.items), len(meta))
        slots = self._local.slots()
        index = slots.to_write(keep_steps, slot_bytes)
        targets = slots.targets(index, layout, data_offset)
        sources = [boundary.sources[i] for i in order]
        chunks = _chunks(layout)
        tickets = [engine.copy(sources[a:b], targets[a:b]) for a, b in chunks]
        boundary.copies = [targets[i] for i in place]
        touched = boundary.touched()
        boundary.copied.set()
        data = slots.data(index, data_offset, layout)
        sums: list[int] = []
        for ticket, (a, b) in zip(tickets, chunks, strict=True):
            engine.landed(ticket)
            sums.extend(checksum(data[item.offset : item.offset + item.nbytes]) for item in layout.items[a:b])
        counters.copied_bytes += layout.data_bytes
        counters.copy_s += time.monotonic() - began
        doubts = self._local.outside_writes.doubts(boundary, [sums[i] for i in place], touched)
        if doubts:
            raise SnapshotError(f"{doubts[0]} may have been changed while it was copied, outside of optimizer.step")
        return Copied(index=index, state=boundary.state, layout=layout, data_offset=data_offset, meta=meta, sums=sums)

    def agree(self, sharing: Sharing) -> None:
        """From now on this is who holds what as well."""
        self._local.sharing = sharing
        self._layout = None

    def seal(self, copied: Copied) -> OpenSlot:
        """Seals the state in its slot, with the peers that are agreed on now: no data moves for them, unique items may lie
        anywhere.
        """
        layout = copied.layout
        if self._layout is None or self._layout[1] is not layout:
            layout = layout.with_peers(self._local.sharing.relied_on)
        return self._local.slots().seal(copied.index, copied.state, layout, copied.meta, copied.sums, copied.data_offset)

    def _place(self, held: list[Held]) -> tuple[Layout, list[int], list[int]]:
        """Returns the layout of these items, for each of its items in order its index in `held`, and the reverse of that."""
        if self._layout is not None and self._layout[0] is not held and _have_same_form(self._layout[0], held):
            self._layout = held, *self._layout[1:]  # parameters that are given other memory in each step
        if self._layout is None or self._layout[0] is not held:
            layout = layout_of(held, self._local.sharing.relied_on)
            index = {each.key: i for i, each in enumerate(held)}
            order = [index[item.key] for item in layout.items]
            self._layout = held, layout, order, sorted(range(len(order)), key=order.__getitem__)
        return self._layout[1:]


def _have_same_form(one: Sequence[Held], other: Sequence[Held]) -> bool:
    forms = [[(each.key, each.tensor.shape, each.tensor.dtype) for each in held] for held in (one, other)]
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
        for each in held
    )
    return Layout.place(items, sets)


def _chunks(layout: Layout) -> list[tuple[int, int]]:
    """Returns ranges of items of about CHUNK_BYTES each, so that one lands while the next is copied."""
    chunks, begin, size = [], 0, 0
    for index, item in enumerate(layout.items):
        size += item.nbytes
        if size >= CHUNK_BYTES:
            chunks.append((begin, index + 1))
            begin, size = index + 1, 0
    if begin < len(layout.items):
        chunks.append((begin, len(layout.items)))
    return chunks
