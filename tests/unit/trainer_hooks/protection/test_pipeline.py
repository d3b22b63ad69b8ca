"""The protect thread with real slots, a real holder and a real store: order, commits, cancellation, sources that change."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore, Store

from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.host.errors import SnapshotError
from deadpool.proto.messages import NO_STEP, Endpoint, Peer, SlotKind, Source, SourceKind
from deadpool.proto.secret import make_token
from deadpool.proto.vault.layout import PIN, SLOT_NAMES, UNIQUE, reserve, slot_path
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import Outgoing
from deadpool.trainer_hooks.checkpoints.agreement import CheckpointAgreement
from deadpool.trainer_hooks.protection.boundary import Boundary, Captured
from deadpool.trainer_hooks.protection.commit import CommitBoard
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.peers import Exchange, RankPlace, Sharing
from deadpool.trainer_hooks.protection.pipeline import ProtectionPlan, Protector
from deadpool.trainer_hooks.protection.ports import Network
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.restore import from_elsewhere
from deadpool.trainer_hooks.protection.schedule import Schedule
from deadpool.trainer_hooks.protection.slots import OwnSlots
from deadpool.trainer_hooks.protection.snapshot import Local
from deadpool.trainer_hooks.protection.vaults import Vaults
from deadpool.trainer_hooks.protection.verify import Verdict, Verifier
from deadpool.trainer_hooks.state.training_state import TrainingState

TOKEN = make_token()
SLOT_BYTES = 1 << 20


class Holder(VaultClient):
    """A holder that refuses as long as it is full; `full` is what it says. From the n-th time on that the same state is sent it
    may also have no room, or give no answer as long as the generation lasts.
    """

    full = ""
    full_from = stuck_from = 1000

    def __init__(self, endpoint: Endpoint, over: threading.Event) -> None:
        super().__init__(endpoint, TOKEN)
        self._over = over
        self._times: Counter[int] = Counter()

    def reserve(self, rank: int, slot_bytes: int) -> None:
        self._refuse_if_full()
        super().reserve(rank, slot_bytes)

    def put(self, outgoing: Outgoing) -> int:
        self._refuse_if_full()
        step = outgoing.request.step
        self._times[step] += 1
        if self._times[step] >= self.full_from:
            raise SnapshotError("no room")
        if self._times[step] >= self.stuck_from:
            self._over.wait(20)
        return super().put(outgoing)

    def _refuse_if_full(self) -> None:
        if self.full:
            raise SnapshotError(self.full)


class Rank:
    """One rank's protection. Each has a node of its own, whose agent's receiver holds the other's replicas."""

    def __init__(self, rank: int, folder: Path, store: Store, holder: ReplicaServer, compare_every: int = 0) -> None:
        torch.manual_seed(0)
        self.rank, self.folder = rank, folder
        self.model = nn.Linear(8, 8)
        self.own = nn.Linear(4, 4)  # differs from rank to rank
        self.state = TrainingState(models={"model": self.model, f"own{rank}": self.own}, optimizers={}, extra={})
        for name in SLOT_NAMES:
            reserve(slot_path(folder, SlotKind.SNAPSHOT, rank, name), SLOT_BYTES)
        self.slots = OwnSlots(folder, rank, CpuEngine())
        self.cancelled, self.counters = threading.Event(), Counters()
        self.troubles: list[Exception] = []
        self.refusals: list[tuple[int, str]] = []
        self.checkpoints = CheckpointAgreement(store, 2, lambda step: False, lambda: True)
        self.differing: list[tuple[int, tuple[int, ...]]] = []
        self.holder = Holder(Endpoint(node_id="h", host="127.0.0.1", port=holder.port), self.cancelled)

        network = Network(
            board=CommitBoard(store, rank=rank, ranks=range(2)),
            holders=[self.holder],
            exchange=Exchange(
                store, rank=rank, ranks=range(2), place=RankPlace(f"node{rank}", f"node{rank}", 1), cancelled=self.cancelled
            ),
            verifier=Verifier(store, rank=rank, ranks=range(2), cancelled=self.cancelled) if compare_every else None,
            checkpoints=self.checkpoints,
            cancelled=self.cancelled,
        )
        plan = ProtectionPlan(rank=rank, generation=1, commit_step=NO_STEP)
        schedule = Schedule(first_step=0, exchange_from=0, exchanges=2, compare_every=compare_every)
        self.local = Local(slots=lambda: self.slots, engine=CpuEngine(), sharing=Sharing(), counters=self.counters)
        self.wish = 1
        self.protector = Protector(plan, schedule, self.local, network, self, lambda: self.wish)

    def committed(self, step: int) -> None:
        pass

    def refused(self, step: int, reason: str) -> None:
        self.refusals.append((step, reason))

    def differs(self, step: int, verdict: Verdict, good_step: int) -> None:
        self.differing.append((step, verdict.ranks))

    def failed(self, error: Exception) -> None:
        self.troubles.append(error)

    def boundary(self, step: int) -> Boundary:
        captured = Captured(self.state.held())
        return Boundary(
            state=StateId(generation=1, step=step),
            captured=captured,
            sources=captured.tensors,
            versions=captured.versions(),
            meta=self.state.capture_meta(),
        )

    def protect(self, step: int) -> Boundary:
        self.protector.fence()
        with torch.no_grad():
            self.model.weight += 1
        boundary = self.boundary(step)
        if self.protector.is_due(step):
            self.protector.submit(boundary)
        else:
            self.protector.pass_over(step)
        return boundary

    def kept(self) -> list[int]:
        """Returns the steps whose slots are pinned as persistent checkpoints."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{PIN}-*"))

    def steps_held(self) -> set[int]:
        return {state.step for state in self.slots.held() if state is not None}


@pytest.fixture
def compare_every() -> int:
    return 0


@pytest.fixture
def ranks(tmp_path: Path, compare_every: int) -> Iterator[list[Rank]]:
    folders = [tmp_path / f"node{rank}" for rank in range(2)]
    servers = [ReplicaServer("127.0.0.1", TOKEN) for _ in folders]
    for folder, server in zip(folders, servers, strict=True):
        folder.mkdir()
        server.start(folder)
    store = HashStore()
    ranks = [Rank(rank, folder, store, servers[1 - rank], compare_every) for rank, folder in enumerate(folders)]
    yield ranks
    for rank in ranks:
        rank.protector.quiesce()
    for server in servers:
        server.close()
    assert not [rank.troubles for rank in ranks if rank.troubles]


def test_states_are_committed_in_order_and_only_what_is_unique_travels(ranks: list[Rank]) -> None:
    for step in range(4):
        for rank in ranks:
            rank.protect(step)
    for rank in ranks:
        assert rank.protector.wait_done(3)
        assert rank.steps_held() == {2, 3}
        slot = rank.slots.find(StateId(generation=1, step=3))
        assert slot is not None
        unique = {item.key for item in slot.tables.layout.items if item.peers == UNIQUE}
        assert unique == {f"model/own{rank.rank}.weight", f"model/own{rank.rank}.bias"}
        assert slot.tables.layout.peer_sets == ((1 - rank.rank,),)
        assert rank.counters.commits >= 3


def test_the_older_slot_stays_until_the_newer_state_is_committed_everywhere(ranks: list[Rank]) -> None:
    first, second = ranks
    for rank in ranks:
        rank.protect(0)
    for rank in ranks:
        assert rank.protector.wait_done(0)
    first.protect(1)  # the exchange of this step needs the other rank as well
    second.protect(1)
    assert first.protector.wait_done(1)
    first.protect(2).settled.wait(10)
    late = first.protect(3)  # the other has not protected step 2: S_1 may still be needed
    first.protector.quiesce()
    assert late.settled.is_set()
    assert first.steps_held() == {1, 2}


def test_a_state_that_changes_under_the_copy_is_not_sealed(ranks: list[Rank]) -> None:
    first, _ = ranks
    boundary = first.boundary(0)
    with torch.no_grad():
        first.model.weight += 1
    first.protector.submit(boundary)
    assert boundary.settled.wait(10)
    assert first.steps_held() == set()


def test_quiesce_seals_what_can_be_sealed_and_ends_all_waiting(ranks: list[Rank]) -> None:
    first, _ = ranks
    first.protect(0)
    waiting = threading.Thread(target=lambda: first.protector.wait_done(0))
    waiting.start()
    first.cancelled.set()
    first.protector.wake()
    first.protector.quiesce()
    waiting.join(10)
    assert not waiting.is_alive()
    assert first.steps_held() == {0}
    after = first.boundary(1)
    first.protector.submit(after)
    assert after.settled.wait(10)
    assert first.steps_held() == {0}


def test_what_a_holder_refuses_is_not_committed_and_the_newest_commit_stays_until_it_is_protected_again(
    ranks: list[Rank],
) -> None:
    first, second = ranks

    def both(step: int) -> None:
        for rank in ranks:
            rank.protect(step)
        for rank in ranks:
            assert rank.protector.wait_done(step)

    both(0)
    both(1)
    first.holder.full = "no room"
    both(2)
    both(3)
    both(4)
    both(5)  # a pause: nobody tries
    refused = (2, 3, 4)
    assert first.refusals == [(step, reason) for step in refused for reason in ("no room", "")]
    assert second.refusals == [(step, "") for step in refused]
    assert all(1 in rank.steps_held() for rank in ranks)
    assert [rank.protector.commit_step for rank in ranks] == [1, 1]
    first.holder.full = ""
    both(6)
    assert [rank.protector.commit_step for rank in ranks] == [6, 6]
    assert all(rank.steps_held() >= {6} for rank in ranks)


def test_the_largest_wish_of_all_ranks_becomes_the_interval_of_each(ranks: list[Rank]) -> None:
    for rank, wish in zip(ranks, (2, 3), strict=True):
        rank.wish = wish
    committed = []
    for step in range(11):
        for rank in ranks:
            rank.protect(step)
        for rank in ranks:
            assert rank.protector.wait_done(step)
        committed.append([rank.protector.commit_step for rank in ranks])
    assert committed == [[step, step] for step in (0, 1, 1, 1, 4, 4, 4, 7, 7, 7, 10)]
    assert [rank.protector.interval for rank in ranks] == [3, 3]


def test_a_slot_that_cannot_grow_is_refused_in_the_middle_of_an_exchange(ranks: list[Rank]) -> None:
    """The other rank waits for what this one holds, and must not wait for ever."""
    first, second = ranks
    first.model.big = nn.Parameter(torch.zeros(1).expand(1 << 50))  # more than any machine has room for, without memory
    for rank in ranks:
        rank.protect(0)
    for rank in ranks:
        assert rank.protector.wait_done(0)
    assert first.refusals[0][0] == 0
    assert "bytes more" in first.refusals[0][1]
    assert second.refusals == [(0, "")]
    del first.model.big
    for rank in ranks:
        rank.protect(1)
    for rank in ranks:
        assert rank.protector.wait_done(1)
        assert rank.protector.commit_step == 1


def commit(ranks: list[Rank], step: int) -> None:
    for rank in ranks:
        rank.protect(step)
    for rank in ranks:
        assert rank.protector.wait_done(step)


def test_a_checkpoint_that_is_asked_for_is_of_the_next_state(ranks: list[Rank]) -> None:
    for step in range(4):
        commit(ranks, step)
    ranks[0].checkpoints.ask()
    commit(ranks, 4)
    assert [rank.kept() for rank in ranks] == [[4], [4]]


@pytest.mark.parametrize("compare_every", [100])
def test_where_ranks_compare_it_is_of_the_next_state_that_they_have_compared(ranks: list[Rank]) -> None:
    for step in range(4):
        commit(ranks, step)
    ranks[0].checkpoints.ask()
    with torch.no_grad():
        ranks[1].model.weight[0, 0] += 1
    commit(ranks, 4)
    assert [rank.kept() for rank in ranks] == [[], []]
    assert ranks[0].differing == [(4, (0, 1))]  # two hold it: nobody can tell who is right; said in the state in which it shows
    commit(ranks, 5)
    assert [rank.kept() for rank in ranks] == [[5], [5]]
    commit(ranks, 6)
    assert [rank.kept() for rank in ranks] == [[5], [5]]


def part(rank: Rank) -> None:
    with torch.no_grad():
        rank.model.weight[0, 0] += 1


def restored(rank: Rank, other: Rank, step: int) -> TrainingState:
    """Returns a state that was restored from what the other node holds of this rank, and has of its own."""
    state = TrainingState(models={"model": nn.Linear(8, 8), f"own{rank.rank}": nn.Linear(4, 4)}, optimizers={}, extra={})
    peer = Peer(rank=other.rank, slot_generation=1, endpoint=rank.holder.endpoint)
    source = Source(rank=rank.rank, kind=SourceKind.REPLICA, slot_generation=1, endpoint=rank.holder.endpoint, peers=(peer,))
    from_elsewhere(state, source, step, Vaults(token=TOKEN))
    return state


def test_what_ranks_hold_no_longer_alike_travels_from_that_very_state_on(ranks: list[Rank]) -> None:
    for step in range(4):
        commit(ranks, step)
    travelled = [rank.counters.replicated_bytes for rank in ranks]
    part(ranks[1])
    commit(ranks, 4)
    part(ranks[1])
    commit(ranks, 5)
    assert [rank.protector.commit_step for rank in ranks] == [5, 5]
    assert all(now > before for now, before in zip([r.counters.replicated_bytes for r in ranks], travelled, strict=True))
    for rank in ranks:
        for step in (4, 5):
            slot = rank.slots.find_whole(StateId(generation=1, step=step))
            assert slot is not None
            apart = {item.key for item in slot.tables.layout.items if item.peers == UNIQUE}
            assert apart == {"model/model.weight", f"model/own{rank.rank}.weight", f"model/own{rank.rank}.bias"}
    for rank, other in (ranks, ranks[::-1]):
        back = {held.key: held.tensor for held in restored(rank, other, 5).held()}
        assert all(torch.equal(back[held.key], held.tensor) for held in rank.state.held())
    assert not torch.equal(ranks[0].model.weight, ranks[1].model.weight)


def test_where_there_is_no_room_for_what_has_parted_the_state_before_stays(ranks: list[Rank]) -> None:
    first, second = ranks
    for step in range(4):
        commit(ranks, step)
    second.holder.full_from = 2  # the first time S_4 is sent there is room
    part(second)
    commit(ranks, 4)
    assert (first.refusals, second.refusals) == ([(4, "")], [(4, "no room"), (4, "")])
    assert [rank.protector.commit_step for rank in ranks] == [3, 3]
    assert all(3 in rank.steps_held() for rank in ranks)


def test_a_generation_that_ends_while_parted_items_are_sent_leaves_every_slot_whole(ranks: list[Rank]) -> None:
    first, second = ranks
    for step in range(4):
        commit(ranks, step)
    second.holder.stuck_from = 2
    part(second)
    for rank in ranks:
        rank.protect(4).settled.wait(10)
    first.cancelled.set()
    for rank in ranks:
        rank.protector.quiesce()
        assert rank.steps_held() == {3, 4}
        assert all(rank.slots.find_whole(StateId(generation=1, step=step)) is not None for step in (3, 4))
