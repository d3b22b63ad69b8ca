"""A rank's own two slots in its node's vault: which may be written, what lies in them, and tensors over their memory."""

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from deadpool.host.errors import SnapshotError
from deadpool.host.prefault import prefault
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.layout import (
    HEADER_BYTES,
    PIN,
    SLOT_NAMES,
    SNAPSHOT_NAMES,
    Header,
    Item,
    Layout,
    SlotFile,
    Tables,
    checksum,
    grow,
    slot_capacity,
    slot_path,
)
from deadpool.proto.vault.slots import StateId, slot_to_write
from deadpool.trainer_hooks.protection.copy_engine import Engine

log = logging.getLogger(__name__)

_META_FLOOR_BYTES = 16 << 10


def capacity(data_bytes: int, items: int, meta_bytes: int) -> tuple[int, int]:
    """Returns (slot size, data offset). Rounded so that metadata of about the same size gives the very same slot."""
    meta_room = max(_META_FLOOR_BYTES, 1 << (meta_bytes - 1).bit_length())
    return slot_capacity(data_bytes, items, meta_room)


class OwnSlots:
    """The snapshot slots of one rank, mapped: two or more (vault_layout.snapshot_slots).

    Made by the agent (Reserve); written by the protect thread alone. `ready`: mapped before, to the last page.
    """

    def __init__(self, vault_dir: Path, rank: int, engine: Engine, ready: Mapping[Path, SlotFile] | None = None) -> None:
        self._vault_dir = vault_dir
        self._paths = _paths(vault_dir, rank)
        self._rank, self._engine = rank, engine
        current = {path: slot for path, slot in (ready or {}).items() if path.exists() and slot.is_current()}
        self._files = [current.get(path) or SlotFile(path) for path in self._paths]
        self._memory = [self._tensor_over(file) for file in self._files]
        self._descriptors = [os.open(path, os.O_RDWR) for path in self._paths]
        weakref.finalize(self, _close_all, self._descriptors)
        self._targets: dict[int, tuple[Layout, int, list[Tensor]]] = {}
        self._prefaulted = {index for index, path in enumerate(self._paths) if path in current}

    def are_current(self) -> bool:
        """Returns whether these are the files that the vault has now."""
        try:
            return self._paths == _paths(self._vault_dir, self._rank) and all(file.is_current() for file in self._files)
        except FileNotFoundError:
            return False

    def held(self) -> list[StateId | None]:
        headers = [file.header() for file in self._files]
        return [StateId(generation=h.generation, step=h.step) if h else None for h in headers]

    def find(self, state: StateId) -> "OpenSlot | None":
        """Returns the sealed slot of that very state, None when there is none."""
        held = self.held()
        return OpenSlot(self._files[held.index(state)]) if state in held else None

    def to_write(self, keep_steps: Sequence[int], slot_bytes: int) -> tuple[int, Header | None]:
        """Returns the index of the slot to write next, and what it was sealed with. It is unsealed, mapped to the last page, and
        of at least `slot_bytes`; ConfigError: there is no room for that.
        """
        free = [index for index, file in enumerate(self._files) if not file.pinned()]
        held = self.held()
        index = free[slot_to_write([held[index] for index in free], *keep_steps)]
        header = self._files[index].header()
        self._files[index].unseal()
        if self._files[index].capacity_bytes < slot_bytes:
            self._grow(index, slot_bytes)
        if index not in self._prefaulted:
            prefault(self._files[index].map)
            self._prefaulted.add(index)
        return index, header

    def targets(self, index: int, layout: Layout, data_offset: int) -> list[Tensor]:
        """Returns a tensor over the slot's memory for each item, in layout order."""
        cached = self._targets.get(index)
        if cached is None or cached[0] is not layout or cached[1] != data_offset:
            base = self._memory[index]
            cached = layout, data_offset, [_tensor_at(base, data_offset, item) for item in layout.items]
            self._targets[index] = cached
        return cached[2]

    def place(self, index: int, data_offset: int, layout: Layout) -> tuple[Path, memoryview]:
        """Returns the slot's file, and the memory of its data."""
        return self._paths[index], self.data(index, data_offset, layout)

    def file(self, index: int) -> int:
        """Returns a descriptor of the slot's file, open as long as these slots are used."""
        return self._descriptors[index]

    def data(self, index: int, data_offset: int, layout: Layout) -> memoryview:
        return self._files[index].view[data_offset : data_offset + layout.data_bytes]

    def seal(self, index: int, state: StateId, tables: Tables, data_offset: int, before: Header | None = None) -> "OpenSlot":
        """Seals the state whose data lie in the slot. `before`: the header of a state whose layout is to be left there, if it is
        the same.
        """
        layout, rest = tables.layout, tables.rest()
        header = tables.header(rest, rank=self._rank, generation=state.generation, step=state.step, data_offset=data_offset)
        self._files[index].seal(header, None if header.has_layout_of(before) else layout.to_bytes(), rest)
        return OpenSlot(self._files[index], tables)

    def seal_again(self, slot: "OpenSlot", peers: Mapping[str, tuple[int, ...]]) -> "OpenSlot":
        """Seals the same state with other peers. Its data stays where it is; the slot is torn for the moment that this takes."""
        header, tables = slot.header, slot.tables
        index = self.held().index(slot.state)
        self._files[index].unseal()
        return self.seal(index, slot.state, replace(tables, layout=tables.layout.with_peers(peers)), header.data_offset)

    def find_whole(self, state: StateId) -> "OpenSlot | None":
        """Returns the sealed slot of that state, every byte of it verified; one that fails is made unusable."""
        slot = self.find(state)
        try:
            if slot is not None:
                for index in range(len(slot.tables.layout.items)):
                    slot.item(index)
        except SnapshotError as error:
            log.warning("%s: the state is copied again", error)
            self.discard(state)
            return None
        return slot

    def pin(self, state: StateId) -> None:
        """Has the node's checkpoint writer keep this sealed state; its slot stays as it is until that is done."""
        index = self.held().index(state)
        link = self._vault_dir / f"{PIN}-{self._rank}-{state.generation}-{state.step}"
        try:
            os.link(self._paths[index], link)
        except FileExistsError:
            pass
        except OSError as error:  # the others' parts alone will not become a checkpoint
            log.warning("no checkpoint of step %d: %s", state.step, error)

    def pinned(self) -> bool:
        return any(file.pinned() for file in self._files)

    def discard(self, state: StateId) -> None:
        """Makes the slot of a state that fails its checksums unusable."""
        for index, held in enumerate(self.held()):
            if held == state:
                self._files[index].unseal()

    def _grow(self, index: int, slot_bytes: int) -> None:
        """The state has outgrown the slot, whose content is no longer needed. The old mapping stays as long as it is used."""
        grow(self._paths[index], slot_bytes)
        self._targets.pop(index, None)
        self._prefaulted.discard(index)
        self._files[index] = SlotFile(self._paths[index])
        self._memory[index] = self._tensor_over(self._files[index])

    def _tensor_over(self, file: SlotFile) -> Tensor:
        memory = torch.frombuffer(file.view, dtype=torch.uint8)
        self._engine.register(memory)
        return memory


class OpenSlot:
    """A sealed slot, read: the tables are verified when they are first asked for, each item whenever it is."""

    def __init__(self, file: SlotFile, tables: Tables | None = None) -> None:
        header = file.header()
        if header is None:
            raise SnapshotError(f"{file.path.name} is torn")
        self.header, self.path = header, file.path
        self.raw_tables = file.view[HEADER_BYTES : HEADER_BYTES + header.tables_bytes]
        self.data = file.data(header)
        if tables is not None:
            self.tables = tables

    @cached_property
    def tables(self) -> Tables:
        return Tables.from_bytes(self.header, self.raw_tables)

    def sums(self) -> dict[str, int]:
        """Returns each item's checksum, by its key."""
        return {item.key: total for item, total in zip(self.tables.layout.items, self.tables.checksums, strict=True)}

    @property
    def state(self) -> StateId:
        return StateId(generation=self.header.generation, step=self.header.step)

    def holds(self, tensors: Mapping[str, Tensor], engine: Engine) -> bool:
        """Returns whether the slot has the very bytes of these tensors."""
        copies = self.tensors()
        return all(key in copies and engine.same(tensor, copies[key]) for key, tensor in tensors.items())

    def tensors(self) -> dict[str, Tensor]:
        """Returns a tensor over the slot's memory for each item, by its key. Not verified."""
        memory = torch.frombuffer(self.data, dtype=torch.uint8) if len(self.data) else torch.empty(0, dtype=torch.uint8)
        return {item.key: _tensor_at(memory, 0, item) for item in self.tables.layout.items}

    def item(self, index: int) -> memoryview:
        """Returns the item's bytes; SnapshotError when they are not what was written."""
        item = self.tables.layout.items[index]
        data = self.data[item.offset : item.offset + item.nbytes]
        if checksum(data) != self.tables.checksums[index]:
            raise SnapshotError(f"rank {self.header.rank} step {self.header.step}: {item.key} fails its checksum")
        return data


def _paths(vault_dir: Path, rank: int) -> list[Path]:
    """Returns the two slots that there must be, and the further ones that there are."""
    paths = [slot_path(vault_dir, SlotKind.SNAPSHOT, rank, name) for name in SNAPSHOT_NAMES]
    return [path for path, name in zip(paths, SNAPSHOT_NAMES, strict=True) if name in SLOT_NAMES or path.exists()]


def _close_all(descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)


def _tensor_at(base: Tensor, data_offset: int, item: Item) -> Tensor:
    begin = data_offset + item.offset
    dtype: torch.dtype = getattr(torch, item.dtype)
    return base[begin : begin + item.nbytes].view(dtype).view(item.shape)
