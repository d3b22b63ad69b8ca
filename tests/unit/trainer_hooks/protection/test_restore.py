"""What a lost rank is restored from, byte by byte: its replica and its peers' snapshots, over real connections."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from replicas import join_threads
from torch import nn

from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.host.errors import SnapshotError
from deadpool.proto.messages import NO_STEP, CopyConflict, Endpoint, Peer, SlotKind, Source, SourceKind
from deadpool.proto.secret import make_token
from deadpool.proto.vault.layout import SLOT_NAMES, SlotFile, Tables, checksum, reserve, slot_path
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine
from deadpool.trainer_hooks.protection.holders import Following
from deadpool.trainer_hooks.protection.outgoing import OutgoingState, Stamp
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.restore import BadCopiesError, from_any_peer, from_elsewhere
from deadpool.trainer_hooks.protection.slots import OpenSlot, OwnSlots, capacity
from deadpool.trainer_hooks.protection.snapshot import layout_of
from deadpool.trainer_hooks.protection.vaults import Vaults
from deadpool.trainer_hooks.state.metadata import pack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState

TOKEN = make_token()
LOST = 2  # the rank whose node is gone; its replica lies with rank 0
STATE = StateId(generation=1, step=7)


class Rank:
    """A rank on a node of its own. All hold the same `model`, each an `own` part."""

    def __init__(self, rank: int, folder: Path) -> None:
        folder.mkdir()
        self.rank, self.folder = rank, folder
        self.server = ReplicaServer("127.0.0.1", TOKEN)
        self.server.start(folder)
        self.endpoint = Endpoint(node_id=f"node{rank}", host="127.0.0.1", port=self.server.port)
        torch.manual_seed(0)
        self.model, self.own = nn.Linear(8, 8), nn.Linear(600, 600)  # more than a megabyte
        torch.nn.init.constant_(self.own.weight, rank)
        self.state = TrainingState(models={"model": self.model, "own": self.own}, optimizers={}, extra={})

    def flip(self) -> None:
        """A bit of a parameter flips, before the state is sealed."""
        self.model.weight.data.view(torch.int32)[3, 3] ^= 1

    def seal(self, *, alone: bool = False) -> OpenSlot:
        """`alone`: as if no other rank held any of it."""
        held = self.state.held()
        others = tuple(sorted({0, 1, 2} - {self.rank}))
        layout = layout_of(held, {each.key: others for each in held if "/model." in each.key and not alone})
        assert layout.peer_sets == (() if alone else (others,))
        meta = pack_meta(self.state.capture_meta())
        size_bytes, data_offset = capacity(layout.data_bytes, len(layout.items), len(meta))
        for name in SLOT_NAMES:
            reserve(slot_path(self.folder, SlotKind.SNAPSHOT, self.rank, name), size_bytes)
        slots = OwnSlots(self.folder, self.rank, CpuEngine())
        index, _ = slots.to_write((NO_STEP,), size_bytes)
        by_key = {each.key: each.tensor for each in held}
        CpuEngine().copy([by_key[item.key] for item in layout.items], slots.targets(index, layout, data_offset), None)
        data = slots.data(index, data_offset, layout)
        sums = [checksum(data[item.offset : item.offset + item.nbytes]) for item in layout.items]
        return slots.seal(index, STATE, Tables(layout=layout, meta=meta, checksums=sums), data_offset)

    def replicate(self, slot: OpenSlot, holder: Endpoint) -> None:
        stamp = Stamp(rank=self.rank, state=STATE, keep_step=NO_STEP, sender_generation=1)
        client = VaultClient(holder, TOKEN)
        outgoing = OutgoingState.of(slot, stamp)
        client.reserve(self.rank, outgoing.slot_bytes)
        client.put(Following(outgoing, {}))
        client.close()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    ranks = [Rank(rank, tmp_path / str(rank)) for rank in range(3)]
    yield ranks
    for rank in ranks:
        rank.server.close()
    join_threads()


def sealed(ranks: list[Rank]) -> Source:
    """All seal their state, the lost one replicates it; returns the source that a plan would name."""
    slots = [rank.seal() for rank in ranks]
    ranks[LOST].replicate(slots[LOST], ranks[0].endpoint)
    peers = tuple(Peer(rank=rank.rank, slot_generation=1, endpoint=rank.endpoint) for rank in ranks[:LOST])
    return Source(rank=LOST, kind=SourceKind.REPLICA, slot_generation=1, endpoint=ranks[0].endpoint, peers=peers)


def conflict(peer: int) -> CopyConflict:
    return CopyConflict(rank=LOST, generation=1, step=7, peer=peer, peer_generation=1)


@pytest.mark.parametrize("way", ["one connection", "several", "its own node"])
def test_a_rank_gets_its_own_part_from_the_replica_and_the_rest_from_a_peer(ranks: list[Rank], tmp_path: Path, way: str) -> None:
    source, new = sealed(ranks), Rank(9, tmp_path / "new")
    ranks.append(new)
    nn.init.zeros_(new.model.weight)
    vaults = Vaults(token=TOKEN, connections=1 if way == "one connection" else 3)
    if way == "its own node":
        vaults = Vaults(token=TOKEN, node_id="node0", folder=ranks[0].folder)
        nobody = Endpoint(node_id="node0", host="127.0.0.1", port=1)
        source = replace(source, endpoint=nobody, peers=tuple(replace(each, endpoint=nobody) for each in source.peers[:1]))
    restored = from_elsewhere(new.state, source, STATE.step, vaults)
    assert torch.equal(new.model.weight, ranks[LOST].model.weight)
    assert torch.equal(new.own.weight, ranks[LOST].own.weight)
    assert (restored.bad_copies, restored.conflicts) == ((), ())


@pytest.mark.parametrize("near", [False, True], ids=["elsewhere", "on its own node"])
def test_a_replica_that_has_gone_bad_is_not_used_and_no_report_names_it_any_more(
    ranks: list[Rank], tmp_path: Path, near: bool
) -> None:
    source, new = sealed(ranks), Rank(9, tmp_path / "new")
    ranks.append(new)
    vaults = Vaults(token=TOKEN, node_id="node0" if near else "", folder=ranks[0].folder)
    (path,) = [path for path in ranks[0].folder.glob("replica-*") if not is_empty(path)]
    data = bytearray(path.read_bytes())
    data[data.find(ranks[LOST].own.weight.detach().numpy().tobytes()) + (1 << 20)] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadCopiesError, match=r"own\.weight fails its checksum") as raised:
        from_elsewhere(new.state, source, STATE.step, vaults)
    assert [(bad.node_id, bad.kind, bad.rank) for bad in raised.value.copies] == [("node0", SlotKind.REPLICA, LOST)]
    assert is_empty(path)
    with pytest.raises(SnapshotError, match=rf"no replica of rank {LOST}, generation 1, step 7"):
        from_elsewhere(new.state, source, STATE.step, vaults)


def is_empty(path: Path) -> bool:
    slot = SlotFile(path)
    try:
        return slot.header() is None
    finally:
        slot.close()


def test_a_peer_that_differs_is_passed_over_and_named(ranks: list[Rank], tmp_path: Path) -> None:
    ranks[0].flip()
    source, new = sealed(ranks), Rank(9, tmp_path / "new")
    ranks.append(new)
    restored = from_elsewhere(new.state, source, STATE.step, Vaults(token=TOKEN))
    assert torch.equal(new.model.weight, ranks[LOST].model.weight)
    assert restored.conflicts == (conflict(0),)


def test_a_replica_that_no_peer_fits_is_not_restored_and_every_contradiction_is_named(ranks: list[Rank], tmp_path: Path) -> None:
    ranks[LOST].flip()
    source, new = sealed(ranks), Rank(9, tmp_path / "new")
    ranks.append(new)
    with pytest.raises(BadCopiesError, match=r"no peer gave back model/model\.weight") as raised:
        from_elsewhere(new.state, source, STATE.step, Vaults(token=TOKEN))
    assert (raised.value.copies, raised.value.conflicts) == ((), (conflict(0), conflict(1)))


def test_a_peer_that_is_out_of_reach_or_bad_is_no_contradiction(ranks: list[Rank], tmp_path: Path) -> None:
    source, new = sealed(ranks), Rank(9, tmp_path / "new")
    ranks.append(new)
    ranks[1].server.close()
    path = slot_path(ranks[0].folder, SlotKind.SNAPSHOT, 0, SLOT_NAMES[0])
    data = bytearray(path.read_bytes())
    raw = ranks[0].model.weight.detach().numpy().tobytes()
    data[data.find(raw)] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadCopiesError) as raised:
        from_elsewhere(new.state, source, STATE.step, Vaults(token=TOKEN))
    ((bad,), conflicts) = raised.value.copies, raised.value.conflicts
    assert (bad.node_id, bad.kind, bad.rank, conflicts) == ("node0", SlotKind.SNAPSHOT, 0, ())
    assert is_empty(path)


def test_a_rank_that_returns_takes_a_replica_that_leaves_nothing_out_where_no_snapshot_can_be_read(
    ranks: list[Rank], tmp_path: Path
) -> None:
    """All that played are lost; a third node holds what one of them had."""
    other, holder, new = ranks[0], ranks[1], Rank(9, tmp_path / "new")
    ranks.append(new)
    other.replicate(other.seal(alone=True), holder.endpoint)
    other.server.close()
    nn.init.zeros_(new.model.weight)
    gone = Peer(rank=0, slot_generation=1, endpoint=other.endpoint)
    whole = Peer(rank=0, slot_generation=1, endpoint=holder.endpoint, kind=SlotKind.REPLICA)
    source = Source(rank=LOST, kind=SourceKind.PEER, slot_generation=1, peers=(gone, whole))
    restored = from_any_peer(new.state, source, STATE.step, Vaults(token=TOKEN))
    assert torch.equal(new.model.weight, other.model.weight)
    assert torch.equal(new.own.weight, other.own.weight)
    assert not restored.bad_copies


def test_a_replica_that_leaves_something_out_is_no_state_of_another_rank(ranks: list[Rank]) -> None:
    ranks[0].replicate(ranks[0].seal(), ranks[1].endpoint)
    part = Peer(rank=0, slot_generation=1, endpoint=ranks[1].endpoint, kind=SlotKind.REPLICA)
    source = Source(rank=LOST, kind=SourceKind.PEER, slot_generation=1, peers=(part,))
    with pytest.raises(BadCopiesError, match="no other rank gave S_7"):
        from_any_peer(ranks[2].state, source, STATE.step, Vaults(token=TOKEN))
