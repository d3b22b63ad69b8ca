"""Ranks of a lost node are excluded, where all others hold the same; when a node comes they return."""

from collections.abc import Sequence

import pytest
from supervising import Scene, replica, snapshot

from deadpool.proto import messages
from deadpool.proto.config import OnExhausted, OnLoss
from deadpool.proto.messages import NO_STEP, Slot, SourceKind
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.recovery.exclusion import obstacle

WORLD = range(4)


def excluding(spares: int = 0) -> Scene:
    """Two nodes of two ranks, all of which hold the same; the second node has just been lost."""
    scene = Scene(on_loss=OnLoss.EXCLUDE, spares=spares)
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(1)
    return scene


def alike(make: object, rank: int, step: int, ranks: Sequence[int] = WORLD, generation: int = 1) -> Slot:
    assert callable(make)
    slot = make(rank, step, generation, peers=[[other for other in ranks if other != rank]])
    assert isinstance(slot, Slot)
    return slot


def vault(step: int) -> list[Slot]:
    """Returns what the first node holds: its ranks' snapshots, and replicas of the others."""
    return [*(alike(snapshot, rank, step) for rank in (0, 1)), *(alike(replica, rank, step) for rank in (2, 3))]


def goes_on(scene: Scene) -> messages.Reform:
    """The first node's ranks go on from S_5 without the others. Returns their plan."""
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4, yielded=6)
    for live in scene.state.roster.live():
        scene.report(live.index, *(vault(5) if live.index == 0 else ()))
    ((node, plan),) = scene.took(messages.Reform)
    assert node == 0
    scene.bring_up(5)
    assert scene.state.phase is Phase.RUN
    return plan


def test_the_others_go_on_without_waiting_for_a_node() -> None:
    scene = excluding()
    plan = goes_on(scene)
    assert (plan.excluded, plan.resume_step, plan.yielded) == ((2, 3), 5, 5), (
        "the step comes to another value: it is yielded again"
    )
    assert [source.rank for source in plan.sources] == [0, 1]
    (record,) = scene.state.recovery.records
    assert (record.ranks, record.excluded, record.returned, record.survivors_kept_processes) == ((2, 3), (2, 3), (), True)
    assert scene.state.recovery.another_since_step == 5
    for rank in (0, 1):
        scene.say(0, messages.RankFinished(generation=2, rank=rank, step=9))
        scene.exits(rank, 0)
    assert scene.end().exit_code == 0


def test_a_node_that_comes_gets_hot_and_its_ranks_return_with_the_state_of_the_others() -> None:
    scene = excluding()
    goes_on(scene)
    scene.forget()
    scene.hello(5)
    ((node, order),) = scene.took(messages.Assign)
    assert (node, order.hot, [each.rank for each in order.placements]) == (5, True, [2, 3])
    for rank in (2, 3):
        scene.say(
            5, messages.RankPrepared(generation=2, rank=rank, live_generation=0, live_step=NO_STEP, commit_step=4, hot=True)
        )
    assert scene.state.phase is Phase.RECOVER
    scene.forget()
    scene.open_store()
    scene.prepare(0, 1, live_step=7, commit_step=7, live_generation=2, yielded=7)
    scene.prepare(2, 3)
    scene.report(0, *(alike(snapshot, rank, 7, (0, 1), generation=2) for rank in (0, 1)))
    scene.report(5)
    plans = dict(scene.took(messages.Reform))
    assert all(plan.excluded == () and plan.resume_step == plan.yielded == 7 for plan in plans.values())
    assert [(source.kind, [peer.rank for peer in source.peers]) for source in plans[5].sources] == [(SourceKind.PEER, [0, 1])] * 2
    scene.bring_up(7)
    record = scene.state.recovery.records[-1]
    assert (record.failure_class, record.spare, record.excluded, record.returned) == ("planned", "node5", (), (2, 3))
    assert scene.state.recovery.another_since_step == 5, "it stays another training"


def test_what_a_process_of_an_excluded_rank_says_until_the_others_go_on_is_of_no_interest() -> None:
    """It may still run on a drained node. When the rank returned, the job would go back to where that script was."""
    scene = excluding()
    scene.state.roster.yields(scene.state.roster.ranks[2], 3)
    goes_on(scene)
    assert (scene.state.roster.ranks[2].yielded, scene.state.roster.ranks[2].yielded_known) == (NO_STEP, False)


@pytest.mark.parametrize(
    ("verify_every", "replicas_of", "resume_step"),
    [
        (0, [4], 5),
        (1, [4], 4),
        (1, [4, 5], 5),
        (1, [5], 5),  # what else lies about, of before, says nothing against it
        (3, [4], 4),
    ],
)
def test_where_states_are_compared_none_counts_that_was_not_compared_with_the_excluded(
    verify_every: int, replicas_of: list[int], resume_step: int
) -> None:
    """A bit that flipped in a lost rank's memory is in its last gradients, and so in what all others hold alike since."""
    scene = Scene(on_loss=OnLoss.EXCLUDE, spares=0, verify_every=verify_every)
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(1)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4, yielded=6)
    own = [alike(snapshot, rank, step) for rank in (0, 1) for step in (4, 5)]
    scene.report(0, *own, *(alike(replica, rank, step) for rank in (2, 3) for step in replicas_of))
    ((_, plan),) = scene.took(messages.Reform)
    assert (plan.resume_step, plan.excluded) == (resume_step, (2, 3))


def test_where_not_all_hold_the_same_a_spare_takes_the_ranks() -> None:
    scene = excluding(spares=1)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.report(2)
    scene.report(0, *vault(5)[:3], messages.Slot(kind=messages.SlotKind.REPLICA, rank=3, generation=1, step=5, unique=True))
    (note,) = scene.notes("not_excluded")
    assert note.fields == {"ranks": (2, 3), "reason": "rank 3 holds what no rank on another node holds"}
    ((node, order),) = scene.took(messages.Assign)
    assert (node, [each.rank for each in order.placements]) == (2, [2, 3])
    scene.prepare(2, 3)
    scene.report(2)
    plans = dict(scene.took(messages.Reform))
    assert all(plan.excluded == () for plan in plans.values())
    assert {source.kind for source in plans[2].sources} == {SourceKind.REPLICA}
    scene.bring_up(5)
    assert scene.state.recovery.another_since_step == NO_STEP


def test_rank_0_is_waited_for() -> None:
    scene = Scene(on_loss=OnLoss.EXCLUDE, spares=0)
    scene.start(commit_step=4)
    scene.lose(0)
    assert [note.fields["ranks"] for note in scene.notes("not_excluded")] == [(0, 1)]
    assert scene.notes("waiting_for_node")


def test_a_call_that_has_no_result_without_them_wants_them_back() -> None:
    scene = excluding()
    goes_on(scene)
    scene.say(0, messages.RankBroken(generation=2, rank=0, error="allgather needs ranks 2, 3", needs=(2, 3)))
    assert [note.fields["reason"] for note in scene.notes("not_excluded")] == ["allgather needs ranks 2, 3"]
    (waits,) = scene.notes("waiting_for_node")
    assert waits.fields["ranks"] == (2, 3)
    scene.hello(5)
    scene.lose(5)
    assert scene.state.roster.excluded == set(), "not in this job any more"


def test_a_return_of_all_that_finds_too_few_nodes_ends_the_job_with_nothing_to_get_ready_for() -> None:
    """That all are needed came out while the ranks were out of their loop: they return at the next boundary."""
    scene = Scene(on_loss=OnLoss.EXCLUDE, on_exhausted=OnExhausted.ABORT, nnodes=3, spares=0)
    scene.start(commit_step=4)
    scene.lose(1)
    scene.lose(2)
    scene.forget()
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4, yielded=6)
    ranks = range(6)
    own = [alike(snapshot, rank, 5, ranks) for rank in (0, 1)]
    scene.report(0, *own, *(alike(replica, rank, 5, ranks) for rank in (2, 3, 4, 5)))
    scene.bring_up(5)
    scene.hello(5)
    scene.state.recovery.needs_all = True
    for rank in (2, 3):
        scene.say(
            5, messages.RankPrepared(generation=3, rank=rank, live_generation=0, live_step=NO_STEP, commit_step=4, hot=True)
        )
    assert scene.end().exit_code == 1
    assert (scene.state.recovery.hot, scene.state.recovery.swaps) == ({}, {})


def test_no_checkpoint_is_asked_for_while_parts_of_it_would_be_missing() -> None:
    scene = Scene(on_loss=OnLoss.EXCLUDE, spares=0, checkpoint_dir="shared")
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(1)
    goes_on(scene)
    scene.say(0, messages.JobSignalled(signal=10))
    assert scene.took(messages.WriteCheckpoint) == []


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (vault(5), ""),
        (vault(5)[:3], "no memory says what rank 3 holds"),
        ([*vault(5), alike(snapshot, 1, 6, (0, 1))], "not all other ranks hold what rank 1 holds"),
        ([*vault(5), snapshot(0, 4)], ""),  # it holds more now
        ([*vault(5)[:3], replica(3, 5)], "not all other ranks hold what rank 3 holds"),
    ],
)
def test_what_is_in_the_way(slots: list[Slot], expected: str) -> None:
    assert obstacle(excluded=(2, 3), ranks=WORLD, vaults={"node0": slots}, lineage=[]) == expected
