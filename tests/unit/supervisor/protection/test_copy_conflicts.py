"""A lost rank's replica that contradicts its peers' copies: another source, then an earlier step, a checkpoint, a clear end."""

from supervising import Scene, replica, snapshot

from deadpool.proto.messages import CheckpointWritten, CopyConflict, RankFailed, RankRestored, Reform, Source, SourceKind
from deadpool.supervisor.core import Job
from deadpool.supervisor.model.phase import Phase

NOBODY_GAVE = "no peer gave back model/w of step 9"
PEERS = [[0]]  # what rank 1's replica leaves out, only rank 0 holds


def lost(*, checkpoint: bool = False, peers: list[list[int]] = PEERS, nnodes: int = 2, limit: int = 5) -> Scene:
    """Rank 1's node is lost, and its replicas of steps 8 and 9 lie with node 0; the first plan, of step 9, is out."""
    scene = Scene(nnodes=nnodes, nproc_per_node=1, spares=2, max_recoveries_without_progress=limit)
    scene.start(commit_step=9)
    if checkpoint:
        scene.say(0, CheckpointWritten(step=6, path="step-6", seconds=1.0))
    scene.lose(1)
    planned(scene, peers)
    return scene


def planned(scene: Scene, peers: list[list[int]] = PEERS) -> None:
    """From Quiesce to the plan, in the present generation."""
    scene.forget()
    scene.open_store()
    others = [rank for rank in range(scene.config.nnodes) if rank != 1]
    live_step = 9 if scene.state.generation == 2 else 8
    scene.prepare(*others, live_step=live_step, commit_step=9)
    scene.prepare(1)
    for node in scene.state.roster.live():
        held = [replica(1, step, 1, peers) for step in (8, 9)] if node.index == 0 else []
        held += [snapshot(node.index, step) for step in (8, 9)] if node.index in others else []
        scene.report(node.index, *held)


def source(scene: Scene) -> Source:
    """Returns rank 1's in the newest plan."""
    return next(each for _, order in reversed(scene.took(Reform)) for each in order.sources if each.rank == 1)


def refuses(scene: Scene, step: int, *peers: int) -> None:
    conflicts = tuple(CopyConflict(rank=1, generation=1, step=step, peer=peer, peer_generation=1) for peer in peers)
    failed = RankFailed(generation=scene.state.generation, rank=1, phase="restore", error=NOBODY_GAVE, conflicts=conflicts)
    scene.say(scene.home(1), failed)


def resume_steps(scene: Scene) -> list[object]:
    return [note.fields["resume_step"] for note in scene.notes("plan")]


def test_the_step_before_is_tried_next_and_the_lost_commit_is_counted() -> None:
    scene = lost()
    assert source(scene).kind is SourceKind.REPLICA
    refuses(scene, 9, 0)
    planned(scene)
    assert resume_steps(scene) == [9, 8]
    scene.bring_up(8)
    (record,) = scene.state.recovery.records
    assert NOBODY_GAVE in record.cause
    assert record.committed_steps_lost == 1
    (note,) = scene.notes("copies_contradict")
    assert note.fields == {"rank": 1, "peer": 0, "step": 9}


def test_with_no_step_left_all_go_back_to_the_checkpoint() -> None:
    scene = lost(checkpoint=True)
    for step in (9, 8):
        refuses(scene, step, 0)
        planned(scene)
    (note,) = scene.notes("back_to_checkpoint")
    assert note.fields["step"] == 6
    assert scene.state.phase is Phase.START


def test_without_a_checkpoint_the_job_ends_and_says_whose_copies_contradict() -> None:
    scene = lost()
    for step in (9, 8):
        refuses(scene, step, 0)
        planned(scene)
    end = scene.end()
    assert end.exit_code == 1
    assert "there is no source of step 8 for rank 1" in end.root_cause
    assert "rank 1's copies contradict those of rank 0 (silent corruption)" in end.root_cause


def test_another_peer_of_the_same_set_is_asked_for_the_same_step() -> None:
    scene = lost(peers=[[0, 2]], nnodes=3)
    assert [peer.rank for peer in source(scene).peers] == [0, 2]
    refuses(scene, 9, 0)
    planned(scene, [[0, 2]])
    assert [peer.rank for peer in source(scene).peers] == [2]
    assert resume_steps(scene) == [9, 9]


def test_what_is_learned_by_failing_is_no_failure_in_a_row() -> None:
    scene = lost(limit=1, checkpoint=True)
    for step in (9, 8):
        refuses(scene, step, 0)
        planned(scene)
    assert scene.state.ending.exit_code is None


def test_it_is_believed_of_an_older_generation_and_known_after_a_replay() -> None:
    """Two ranks cannot be restored; what the second one says comes when the first has already begun another generation."""
    scene = lost()
    generation = scene.state.generation
    scene.say(0, RankFailed(generation=generation, rank=0, phase="restore", error="the connection was closed"))
    assert scene.state.generation == generation + 1
    known = CopyConflict(rank=1, generation=1, step=9, peer=0, peer_generation=1)
    late = RankFailed(generation=generation, rank=1, phase="restore", error=NOBODY_GAVE, conflicts=(known,))
    scene.say(scene.home(1), late, late)
    assert scene.state.generation == generation + 1
    assert len(scene.notes("copies_contradict")) == 1
    planned(scene)
    assert resume_steps(scene) == [9, 8]
    job = Job(scene.config)
    for event, now_s in scene.past:
        if event is None:
            job.tick(now_s=now_s)
        else:
            job.handle(event, now_s=now_s)
    assert job.state == scene.state


def test_a_peer_that_was_passed_over_is_told_of() -> None:
    scene = lost(peers=[[0, 2]], nnodes=3)
    passed = CopyConflict(rank=1, generation=1, step=9, peer=0, peer_generation=1)
    restored = RankRestored(generation=scene.state.generation, rank=1, step=9, bytes_restored=1, conflicts=(passed,))
    scene.say(scene.home(1), restored)
    assert len(scene.notes("copies_contradict")) == 1
    scene.bring_up(9)
    assert scene.state.recovery.records[0].resume_step == 9
