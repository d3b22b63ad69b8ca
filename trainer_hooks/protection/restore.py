"""Brings the process to the plan's state: its own live one, its own snapshot, or a replica together with peers' snapshots.

A rank that was moved from a node that lives finds its own snapshot there.

Every byte is checked against the checksum that the rank itself recorded when the state was protected, before the process counts
as holding the state; bytes from peers too, so that a peer that differs cannot slip in. A copy that fails its own checksums is
made unusable where it lies: the next plan does not find it. A peer's copy that is whole and yet another one is reported as a
conflict: no plan counts on that peer for that replica again.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from deadpool.host.errors import DeadpoolError, SnapshotError
from deadpool.proto.messages import BadCopy, CopyConflict, SlotKind, Source, SourceKind
from deadpool.proto.vault.layout import UNIQUE, Item, Tables
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.copy_engine import as_bytes, is_plain
from deadpool.trainer_hooks.protection.peers import Peers, Sharing
from deadpool.trainer_hooks.protection.slots import OwnSlots
from deadpool.trainer_hooks.protection.vaults import VaultReader, Vaults
from deadpool.trainer_hooks.state.items import put
from deadpool.trainer_hooks.state.metadata import Meta, unpack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState

OUTSIDE_WRITES = "outside_writes"  # in the metadata: what OutsideWrites knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """`sharing`: what the snapshot says of who else holds which item. `bad_copies`, `conflicts`: passed over on the way.

    `sums`: each item's checksum. `outside_writes`: the items known to change outside of optimizer.step.
    """

    bytes_restored: int
    sharing: Sharing
    bad_copies: tuple[BadCopy, ...] = ()
    conflicts: tuple[CopyConflict, ...] = ()
    sums: Mapping[str, int] | None = None
    outside_writes: tuple[str, ...] = ()


class BadCopiesError(SnapshotError):
    """`copies` are not what they were when they were sealed; `conflicts` contradict each other."""

    def __init__(self, message: str, copies: tuple[BadCopy, ...], conflicts: tuple[CopyConflict, ...] = ()) -> None:
        super().__init__(message)
        self.copies, self.conflicts = copies, conflicts


@dataclass(slots=True)
class _PassedOver:
    """What could not be used on the way."""

    bad_copies: list[BadCopy] = field(default_factory=list)
    conflicts: list[CopyConflict] = field(default_factory=list)


def from_own_slot(state: TrainingState, slots: OwnSlots, wanted: StateId, node_id: str) -> Restored:
    """Restores from the rank's own snapshot. SnapshotError when it is not whole; the slot is then made unusable."""
    slot = slots.find(wanted)
    if slot is None:
        raise SnapshotError(f"no sealed snapshot of {wanted} in the vault")
    try:
        data = {item.key: slot.item(index) for index, item in enumerate(slot.tables.layout.items)}
    except SnapshotError as error:
        slots.discard(wanted)
        raise BadCopiesError(str(error), (_copy(node_id, SlotKind.SNAPSHOT, slot.header.rank, wanted),)) from error
    return restore_from(state, slot.tables, data)


@torch.no_grad()
def from_elsewhere(state: TrainingState, source: Source, step: int, vaults: Vaults) -> Restored:
    """Restores from the copy that source.endpoint holds: the rank's whole snapshot, or a replica, replicated items from peers.

    The bytes go straight into the model's memory, and are checked there: after any error the process holds nothing that may be
    used (Member.restoring has said so). Raises UnavailableError, SnapshotError.
    """
    assert source.endpoint is not None
    kind = SlotKind.REPLICA if source.kind is SourceKind.REPLICA else SlotKind.SNAPSHOT
    holder = vaults.reader(source.endpoint)
    wanted_state = StateId(generation=source.slot_generation, step=step)
    try:
        _, tables = holder.head(kind, source.rank, source.slot_generation, step)
        landing = _Landing(state, tables)
        held = [item for item in tables.layout.items if item.peers == UNIQUE or kind is SlotKind.SNAPSHOT]
        parts = [(item.offset, landing.memory[item.key]) for item in held]
        sums = holder.data(kind, source.rank, source.slot_generation, step, parts)
        for item, total in zip(held, sums, strict=True):
            if total != landing.sums[item.key]:
                bad = _discarded(holder, kind, source.rank, wanted_state)
                where = f"{kind} of rank {source.rank} step {step} at {source.endpoint.node_id}"
                raise BadCopiesError(f"{where}: {item.key} fails its checksum", (bad,))
    finally:
        holder.close()
    passed = _PassedOver()
    for index, peer_set in enumerate(tables.layout.peer_sets if kind is SlotKind.REPLICA else ()):
        items = [item for item in tables.layout.items if item.peers == index]
        holders = tuple(peer for peer in source.peers if peer.rank in peer_set)
        _from_peers(items, landing, replace(source, peers=holders), step, vaults, passed)
    landing.finish()
    meta = unpack_meta(tables.meta)
    state.restore_meta(meta)
    restored = _restored(tables, meta)
    return replace(restored, bad_copies=tuple(passed.bad_copies), conflicts=tuple(passed.conflicts))


def from_any_peer(state: TrainingState, source: Source, step: int, vaults: Vaults) -> Restored:
    """Restores a rank that was excluded, from the first whole copy of another rank's state that can be read: it has all it needs.

    Who holds the same from now on is found out anew. Raises BadCopiesError when none can be read.
    """
    bad: list[BadCopy] = []
    failures: list[str] = []
    for peer in source.peers:
        kind = SourceKind.REPLICA if peer.kind is SlotKind.REPLICA else SourceKind.ELSEWHERE
        other = Source(rank=peer.rank, kind=kind, slot_generation=peer.slot_generation, endpoint=peer.endpoint)
        try:
            restored = from_elsewhere(state, other, step, vaults)
        except DeadpoolError as error:
            failures.append(str(error))
            bad += error.copies if isinstance(error, BadCopiesError) else ()
        else:
            return replace(restored, sharing=Sharing(), bad_copies=tuple(bad))
    raise BadCopiesError(f"no other rank gave S_{step}: {'; '.join(failures)}", tuple(bad))


class _Landing:
    """Where the items' bytes arrive: the memory of the model's own tensors where that can be written to as it is, else a buffer.

    The process is made to hold these items, whose values are garbage until all have arrived and `finish` was called. `sums`: of
    each, as the rank itself recorded it.
    """

    def __init__(self, state: TrainingState, tables: Tables) -> None:
        targets = state.fit({item.key: item for item in tables.layout.items}, unpack_meta(tables.meta))
        self.sums = {item.key: total for item, total in zip(tables.layout.items, tables.checksums, strict=True)}
        self._buffered: list[tuple[Tensor, Tensor]] = []
        self.memory: dict[str, memoryview] = {}
        for key, target in targets.items():
            arriving = target
            if target.device.type != "cpu" or not is_plain(target):
                arriving = torch.empty(target.shape, dtype=target.dtype)
                self._buffered.append((target, arriving))
            self.memory[key] = as_bytes(arriving).numpy().data

    def finish(self) -> None:
        for target, arrived in self._buffered:
            put(target, arrived)


def _from_peers(items: list[Item], landing: _Landing, source: Source, step: int, vaults: Vaults, passed: _PassedOver) -> None:
    """Fills the items' memory from the first of source.peers that has the wanted bytes; adds the others to `passed`."""
    failures: list[str] = []
    for peer in source.peers:
        client = vaults.reader(peer.endpoint)
        try:
            _, tables = client.head(SlotKind.SNAPSHOT, peer.rank, peer.slot_generation, step)
            offsets = {item.key: item.offset for item in tables.layout.items}
            missing = [item.key for item in items if item.key not in offsets]
            if missing:
                raise SnapshotError(f"rank {peer.rank} does not hold {missing[0]}")
            parts = [(offsets[item.key], landing.memory[item.key]) for item in items]
            totals = client.data(SlotKind.SNAPSHOT, peer.rank, peer.slot_generation, step, parts)
            found = {item.key: total for item, total in zip(items, totals, strict=True)}
            differing = [key for key, total in found.items() if total != landing.sums[key]]
            own = {item.key: total for item, total in zip(tables.layout.items, tables.checksums, strict=True)}
            if any(found[key] != own[key] for key in differing):
                state = StateId(generation=peer.slot_generation, step=step)
                passed.bad_copies.append(_discarded(client, SlotKind.SNAPSHOT, peer.rank, state))
            elif differing:
                passed.conflicts.append(
                    CopyConflict(
                        rank=source.rank,
                        generation=source.slot_generation,
                        step=step,
                        peer=peer.rank,
                        peer_generation=peer.slot_generation,
                    )
                )
            if differing:
                raise SnapshotError(f"rank {peer.rank} on {peer.endpoint.node_id} holds other bytes of {differing[0]}")
            return
        except DeadpoolError as error:
            failures.append(str(error))
        finally:
            client.close()
    reason = f"no peer gave back {items[0].key} of step {step}: {'; '.join(failures) or 'none is left'}"
    raise BadCopiesError(reason, tuple(passed.bad_copies), tuple(passed.conflicts))


def _discarded(client: VaultReader, kind: SlotKind, rank: int, state: StateId) -> BadCopy:
    """Returns the bad copy's name, once its node has looked at it itself and made it unusable (or cannot be reached)."""
    with contextlib.suppress(DeadpoolError):
        client.discard(kind, rank, state.generation, state.step)
    return _copy(client.endpoint.node_id, kind, rank, state)


def _copy(node_id: str, kind: SlotKind, rank: int, state: StateId) -> BadCopy:
    return BadCopy(node_id=node_id, kind=kind, rank=rank, generation=state.generation, step=state.step)


@torch.no_grad()
def restore_from(state: TrainingState, tables: Tables, data: Mapping[str, memoryview | bytearray]) -> Restored:
    """Makes the process hold these items, which have been checked, and what the metadata says."""
    items = {item.key: item for item in tables.layout.items}
    meta = unpack_meta(tables.meta)
    targets = state.fit(items, meta)
    for key, target in targets.items():
        if items[key].nbytes:
            source = torch.frombuffer(data[key], dtype=target.dtype).view(items[key].shape)
            put(target, source)
    state.restore_meta(meta)
    return _restored(tables, meta)


def _restored(tables: Tables, meta: Meta) -> Restored:
    return Restored(
        bytes_restored=sum(item.nbytes for item in tables.layout.items),
        sharing=Sharing(same=peers_of(tables), relied_on=peers_of(tables)),
        sums={item.key: total for item, total in zip(tables.layout.items, tables.checksums, strict=True)},
        outside_writes=tuple(meta.get(OUTSIDE_WRITES, ())),
    )


def peers_of(tables: Tables) -> Peers:
    sets = tables.layout.peer_sets
    return {item.key: sets[item.peers] if item.peers != UNIQUE else () for item in tables.layout.items}
