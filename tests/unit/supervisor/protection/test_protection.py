"""What the supervisor makes of protection that is off, of states that differ, and of a checkpoint that is asked for."""

import pytest
from supervising import Scene, replica, snapshot

from deadpool.proto.messages import NO_STEP, CheckpointWritten, KillRanks, ProtectionChanged, StateDiffers, WriteCheckpoint
from deadpool.supervisor.model.events import CheckpointRequested
from deadpool.supervisor.protection.protection import unprotected


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.start(commit_step=9)
    scene.forget()
    return scene


def changed(rank: int, step: int, reason: str, generation: int = 1) -> ProtectionChanged:
    return ProtectionChanged(generation=generation, rank=rank, step=step, reason=reason)


def differs(rank: int, ranks: tuple[int, ...], good_step: int = NO_STEP, step: int = 12) -> StateDiffers:
    repair = "none" if good_step == NO_STEP else "discarded"
    return StateDiffers(
        generation=1, rank=rank, step=step, ranks=ranks, item="model/w", repair=repair, good_step=good_step
    )  # fmt: skip


def test_unprotected_is_said_once_for_each_reason_and_over_with_a_commit_of_all(scene: Scene) -> None:
    scene.say(0, changed(0, 11, "no room"))
    scene.say(1, changed(2, 10, "no room"))
    assert unprotected(scene.state) == "unprotected since step 10: rank 2: no room"
    assert [note.fields["since_step"] for note in scene.notes("unprotected")] == [11]
    scene.say(1, changed(3, 15, ""))
    scene.say(0, changed(0, 15, ""))
    assert unprotected(scene.state) == ""
    assert [note.fields["step"] for note in scene.notes("protected_again")] == [15]


def test_it_is_unprotected_until_the_next_generation_has_committed_again(scene: Scene) -> None:
    scene.say(0, changed(0, 11, "no room"))
    scene.killed(3)
    assert unprotected(scene.state) == "unprotected since step 11: rank 0: no room"
    scene.recover(step=9, survivors=(0, 1, 2), joiners=(3,))
    scene.bring_up(9)
    assert unprotected(scene.state)
    scene.heartbeat(step=12, commit_step=11)
    assert unprotected(scene.state) == ""


def test_an_outvoted_rank_is_killed_and_nothing_behind_the_good_state_is_used(scene: Scene) -> None:
    """Several ranks tell of it; live states and snapshots of the steps in between are there on all nodes."""
    for rank in (0, 1, 3):
        scene.say(scene.home(rank), differs(rank, (2,), good_step=8))
    assert [(node, order.ranks) for node, order in scene.took(KillRanks)] == [(1, (2,))]
    assert len(scene.notes("state_differs")) == 1
    scene.killed(2)
    scene.open_store()
    scene.prepare(0, 1, 3, live_step=12, commit_step=11)
    scene.prepare(2)
    for node in (0, 1, 2):
        own, other = range(2 * node, 2 * node + 2), range(2 * (1 - node), 2 * (1 - node) + 2)
        slots = [snapshot(rank, step) for rank in own for step in (8, 11)] + [replica(rank, 11) for rank in other]
        scene.report(node, *(slots if node < 2 else ()))
    assert [note.fields["resume_step"] for note in scene.notes("plan")] == [8]
    scene.bring_up(8)
    (record,) = scene.state.recovery.records
    assert "silent corruption" in record.cause
    assert record.committed_steps_lost == 3


def test_what_nobody_can_decide_is_named_and_the_job_called_unprotected(scene: Scene) -> None:
    scene.say(0, differs(0, (0, 1)))
    scene.say(0, differs(0, (0, 1), step=16))
    assert not scene.took(KillRanks)
    assert len(scene.notes("state_differs")) == len(scene.notes("unprotected")) == 1
    assert unprotected(scene.state).startswith("unprotected since step 12: ranks 0, 1 differ in model/w")
    scene.say(0, changed(0, 17, ""))
    assert unprotected(scene.state)


def test_a_checkpoint_is_asked_for_until_it_is_written(scene: Scene) -> None:
    scene.handle(CheckpointRequested(event_id=900))
    assert scene.notes("checkpoint_failed")
    scene = Scene(checkpoint_dir="/checkpoints")
    scene.start(commit_step=9)
    scene.handle(CheckpointRequested(event_id=900))
    assert [(node, order.generation) for node, order in scene.took(WriteCheckpoint)] == [(0, 1)]
    scene.killed(0)
    scene.recover(step=9, survivors=(1, 2, 3), joiners=(0,))
    scene.bring_up(9)
    assert [(node, order.generation) for node, order in scene.took(WriteCheckpoint)][-1] == (0, 2)
    scene.say(0, CheckpointWritten(step=10, path="step-10", seconds=1.0))
    assert not scene.state.protection.checkpoint_asked
