"""The supervisor's deadlines in a recovery: who is late, whose process is stopped, and what follows."""

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.supervisor.model.events import SupervisorStarted


def answers(scene: Scene, rank: int, done: int) -> None:
    """The rank reforms and restores, or does so many of the two."""
    generation = scene.state.generation
    said: list[messages.AgentMessage] = [
        messages.RankReformed(generation=generation, rank=rank),
        messages.RankRestored(generation=generation, rank=rank, step=5, bytes_restored=0),
    ]
    scene.say(scene.home(rank), *said[:done])


@pytest.mark.parametrize(("done", "deadline_s"), [(0, 30.0), (1, 600.0), (2, 600.0)])
def test_a_stage_that_takes_too_long_is_a_failure(done: int, deadline_s: float) -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    for rank in range(4):
        answers(scene, rank, done)
    scene.wait(deadline_s - 0.1)
    assert scene.state.generation == 2
    scene.wait(0.2)
    assert scene.state.generation == 3


def test_survivor_that_does_not_quiesce_is_killed_and_replaced() -> None:
    scene = Scene(quiesce_timeout_s=10.0)
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.wait(9.9)
    scene.forget()
    assert not scene.took(messages.KillRanks)
    scene.wait(0.2)
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (2,))]
    scene.killed(2)
    ((node, assign),) = scene.took(messages.Assign)
    assert (node, [placement.rank for placement in assign.placements]) == (1, [2])
    scene.killed(2, pid=1002)  # its agent says so twice
    assert scene.state.generation == 2
    scene.prepare(2, 3)
    for node in range(3):
        scene.report(node, *scene.vault(node, 5))
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert record.ranks == (2, 3)


def test_process_that_does_not_die_costs_its_node_the_seat() -> None:
    scene = Scene(quiesce_timeout_s=10.0)
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.forget()
    scene.wait(21.0)
    assert {node for node, _ in scene.took(messages.Assign)} == {2}
    assert scene.state.roster.nodes["node1"].role == "faulty"


def test_joiner_gets_its_own_deadline() -> None:
    scene = Scene(quiesce_timeout_s=10.0, join_timeout_s=50.0)
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, 1, 2, live_step=5, commit_step=4)
    scene.wait(49.0)
    scene.forget()
    scene.wait(1.1)
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (3,))]
    scene.killed(3)
    assert scene.state.generation == 3
    assert [node for node, _ in scene.took(messages.Assign)] == [1]


def test_joiner_that_takes_far_longer_than_any_process_before_hangs() -> None:
    """Learned from the job's own start; one that was only slow has twice as long the next time."""
    scene = Scene(quiesce_timeout_s=10.0, join_timeout_s=600.0)
    scene.start()
    scene.wait(10.0)
    scene.heartbeat(step=1, commit_step=0)
    assert scene.state.progress.longest_build_s == 10.0
    for generation, limit_s in ((2, 50.0), (3, 100.0)):
        scene.killed(3)
        assert scene.state.generation == generation
        scene.prepare(0, 1, 2, live_step=1, commit_step=0)
        scene.say(1, messages.RankJoined(generation=generation, rank=3, pid=2000 + generation))
        scene.forget()
        scene.wait(limit_s - 0.1)
        assert not scene.took(messages.KillRanks)
        scene.wait(0.2)
        assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (3,))]


def test_a_build_has_not_taken_the_time_without_a_supervisor() -> None:
    """A successor's clock may be ahead by any time; else every joiner of the job would have five times that."""
    scene = Scene()
    scene.start()
    scene.now_s += 107.0
    scene.handle(SupervisorStarted(event_id=900, term=1, away_s=0.0))
    scene.handle(SupervisorStarted(event_id=901, term=2, away_s=100.0))
    scene.heartbeat(step=1, commit_step=0)
    assert scene.state.progress.longest_build_s == 5.0


def stopped(scene: Scene, rank: int, *, is_stopped: bool = True) -> None:
    """The rank's agent says so with its heartbeat."""
    known = scene.state.roster.ranks[rank]
    progress = messages.RankProgress(
        rank=rank, pid=known.pid or 1000 + rank, step=5, commit_step=4, steps_done=5, exposed_stall_s=0.0, stopped=is_stopped
    )
    scene.say(scene.home(rank), messages.Heartbeat(generation=scene.state.generation, ranks=(progress,)))


def test_a_recovery_does_not_wait_for_a_survivor_that_is_stopped() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    stopped(scene, 2)
    scene.wait(2.9)
    scene.forget()
    stopped(scene, 2, is_stopped=False)  # somebody looked at it with a debugger, say
    scene.wait(1.0)
    stopped(scene, 2)
    scene.wait(2.9)
    assert not scene.took(messages.KillRanks)
    scene.wait(0.2)
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (2,))]
    scene.killed(2)
    assert [order.placements[0].rank for _, order in scene.took(messages.Assign)] == [2]
    assert scene.state.generation == 2
    scene.wait(4.0)
    assert scene.state.generation == 2


@pytest.mark.parametrize("done", [0, 1, 2])
def test_nor_does_it_in_a_later_stage(done: int) -> None:
    """The next generation begins, in which it is killed immediately."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    for rank in range(4):
        answers(scene, rank, done if rank == 2 else 2)
    stopped(scene, 2)
    scene.wait(2.9)
    assert scene.state.generation == 2
    scene.forget()
    scene.wait(0.2)
    assert scene.state.generation == 3
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (2,))]
    scene.killed(2)
    scene.recover(step=5, survivors=[0, 1, 3], joiners=[2])
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert "the process of rank 2 is stopped" in record.cause


def test_while_the_job_runs_a_stopped_rank_has_the_time_that_a_hang_has() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    stopped(scene, 2)
    scene.wait(25.0)
    assert scene.state.generation == 1
