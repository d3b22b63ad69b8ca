"""Brings the process to the plan's state: its own live one, its own snapshot, or a replica together with peers' snapshots.

Every byte that is copied into the model has been checked against the checksum that the rank itself recorded when the state was
protected; bytes from peers too, so that a peer that differs cannot slip in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from deadpool.proto.errors import DeadpoolError, SnapshotError
from deadpool.proto.messages import Peer, SlotKind, Source
from deadpool.proto.slots import StateId
from deadpool.proto.vault_layout import UNIQUE, Item, Tables, checksum
from deadpool.trainer_hooks.replicate import VaultClient
from deadpool.trainer_hooks.state import TrainingState, unpack_meta
from deadpool.trainer_hooks.unique import Peers
from deadpool.trainer_hooks.vault import OwnSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """`peers`: what the snapshot says of who else holds which item."""

    bytes_restored: int
    peers: Peers


def from_own_slot(state: TrainingState, slots: OwnSlots, wanted: StateId) -> Restored:
    """Restores from the rank's own snapshot. SnapshotError when it is not whole; the slot is then made unusable."""
    slot = slots.find(wanted)
    if slot is None:
        raise SnapshotError(f"no sealed snapshot of {wanted} in the vault")
    try:
        data = {item.key: slot.item(index) for index, item in enumerate(slot.tables.layout.items)}
    except SnapshotError:
        slots.discard(wanted)
        raise
    return _apply(state, slot.tables, data)


def from_replica(state: TrainingState, source: Source, step: int, token: str) -> Restored:
    """Restores from the replica that source.endpoint holds, replicated items from peers. UnavailableError, SnapshotError."""
    assert source.endpoint is not None
    holder = VaultClient(source.endpoint, token)
    try:
        _, tables = holder.head(SlotKind.REPLICA, source.rank, source.slot_generation, step)
        wanted = {item.key: (item, total) for item, total in zip(tables.layout.items, tables.checksums, strict=True)}
        data = {key: bytearray(item.nbytes) for key, (item, _) in wanted.items()}
        unique = [item for item in tables.layout.items if item.peers == UNIQUE]
        parts = [(item.offset, memoryview(data[item.key])) for item in unique]
        holder.data(SlotKind.REPLICA, source.rank, source.slot_generation, step, parts)
    finally:
        holder.close()
    for item in unique:
        if checksum(data[item.key]) != wanted[item.key][1]:
            raise SnapshotError(
                f"replica of rank {source.rank} step {step} at {source.endpoint.node_id}: {item.key} fails its checksum"
            )
    for index, peer_set in enumerate(tables.layout.peer_sets):
        items = [item for item in tables.layout.items if item.peers == index]
        _from_peers(items, data, wanted, [peer for peer in source.peers if peer.rank in peer_set], step, token)
    return _apply(state, tables, data)


def _from_peers(
    items: list[Item],
    data: Mapping[str, bytearray],
    wanted: Mapping[str, tuple[Item, int]],
    peers: Iterable[Peer],
    step: int,
    token: str,
) -> None:
    """Fills the items' data from the first peer whose bytes are those that are wanted."""
    failures: list[str] = []
    for peer in peers:
        client = VaultClient(peer.endpoint, token)
        try:
            _, tables = client.head(SlotKind.SNAPSHOT, peer.rank, peer.slot_generation, step)
            offsets = {item.key: item.offset for item in tables.layout.items}
            missing = [item.key for item in items if item.key not in offsets]
            if missing:
                raise SnapshotError(f"rank {peer.rank} does not hold {missing[0]}")
            parts = [(offsets[item.key], memoryview(data[item.key])) for item in items]
            client.data(SlotKind.SNAPSHOT, peer.rank, peer.slot_generation, step, parts)
            differing = [item.key for item in items if checksum(data[item.key]) != wanted[item.key][1]]
            if differing:
                raise SnapshotError(f"rank {peer.rank} on {peer.endpoint.node_id} holds other bytes of {differing[0]}")
            return
        except DeadpoolError as error:
            failures.append(str(error))
        finally:
            client.close()
    raise SnapshotError(f"no peer gave back {items[0].key} of step {step}: {'; '.join(failures) or 'none is left'}")


@torch.no_grad()
def _apply(state: TrainingState, tables: Tables, data: Mapping[str, memoryview | bytearray]) -> Restored:
    items = {item.key: item for item in tables.layout.items}
    targets = state.fit(items)
    for key, target in targets.items():
        if items[key].nbytes:
            source = torch.frombuffer(data[key], dtype=target.dtype).view(items[key].shape)
            target.copy_(source)
    state.restore_meta(unpack_meta(tables.meta))
    return Restored(bytes_restored=sum(item.nbytes for item in items.values()), peers=peers_of(tables))


def peers_of(tables: Tables) -> Peers:
    sets = tables.layout.peer_sets
    return {item.key: sets[item.peers] if item.peers != UNIQUE else () for item in tables.layout.items}
