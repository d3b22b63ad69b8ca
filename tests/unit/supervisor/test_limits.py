"""What ends or holds up a job: no source of state, no spare, nodes and recoveries that fail again and again."""

import pytest
from supervising import Scene, snapshot, too_often

from deadpool.proto import messages
from deadpool.proto.config import OnExhausted
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase


def test_no_source_ends_the_job_and_names_the_ranks() -> None:
    scene = Scene(spares=2)
    scene.start(commit_step=4)
    scene.lose(1)
    scene.lose(0)
    scene.open_store()
    scene.prepare(0, 1, 2, 3)
    scene.report(3, snapshot(0, 4))
    scene.report(2)
    end = scene.end()
    assert end.exit_code == 1
    assert end.root_cause.startswith("node1 lost")
    assert "there is no source of step 4 for rank 1, 2, 3" in end.root_cause


def test_no_spare_waits_for_a_node() -> None:
    scene = Scene(spares=0)
    scene.start(commit_step=4)
    scene.lose(1)
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.wait(3600.0)
    assert scene.state.phase is Phase.RECOVER
    assert scene.notes("waiting_for_node")
    scene.forget()
    scene.hello(1)
    assert [node for node, _ in scene.took(messages.Assign)] == [1]
    assert scene.state.generation == 3
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.prepare(2, 3)
    scene.report(0, *scene.vault(0, 5))
    scene.report(1)
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert record.phases_s.decide == pytest.approx(3600.0)
    assert record.total_s == pytest.approx(3600.0)


def test_no_spare_aborts_when_asked_to() -> None:
    scene = Scene(spares=0, on_exhausted=OnExhausted.ABORT)
    scene.start(commit_step=4)
    scene.lose(1)
    assert scene.end().exit_code == 1
    assert "no spare is left" in scene.end().root_cause


def test_nodes_that_are_lost_together_are_one_recovery() -> None:
    scene = Scene(nnodes=5, spares=2, max_recoveries_without_progress=1)
    scene.start(commit_step=4)
    scene.lose(1, 3, 6)
    assert scene.state.generation == 2
    assert [note.fields["node"] for note in scene.notes("node_lost")] == ["node1", "node3", "node6"]
    assert [note.fields["cause"] for note in scene.notes("failure")] == [f"node{n} lost: its stream was closed" for n in (1, 3)]
    assert scene.notes("waiting_for_node")[-1].fields["ranks"] == (6, 7)
    scene.hello(7)  # a spare has gone with them
    scene.open_store()
    scene.prepare(0, 1, 4, 5, 8, 9, live_step=5, commit_step=4)
    scene.prepare(2, 3, 6, 7)
    for node in (0, 2, 4, 5, 7):
        scene.report(node, *scene.vault(node, 5))
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert record.cause == "node1 lost: its stream was closed; node3 lost: its stream was closed"
    assert (record.ranks, record.spare) == ((2, 3, 6, 7), "node5, node7")


def test_a_script_without_join_begins_anew_once_for_all_that_are_lost_together() -> None:
    scene = Scene(nnodes=3, spares=2, max_restarts=1)
    scene.start(hooked=False)
    scene.wait(3600.0)
    scene.lose(0, 2)
    assert scene.state.recovery.restarts == 1
    assert scene.state.generation == 2
    assert scene.state.phase is Phase.START


def test_node_whose_processes_fail_too_often_gives_its_ranks_to_the_spare() -> None:
    scene = Scene(failure_rules=too_often(1))
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    scene.forget()
    scene.killed(3, pid=0)
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (2,))]
    ((node, assign),) = scene.took(messages.Assign)
    assert (node, [placement.rank for placement in assign.placements]) == (2, [2, 3])
    assert scene.state.roster.nodes["node1"].role == "faulty"


def test_failing_node_keeps_its_ranks_when_there_is_no_spare() -> None:
    scene = Scene(failure_rules=too_often(0), spares=0)
    scene.start(commit_step=4)
    scene.forget()
    scene.killed(3)
    assert [node for node, _ in scene.took(messages.Assign)] == [1]
    assert scene.notes("kept_on_node")


@pytest.mark.parametrize("then", ["its successor is lost", "another is lost before", "it is faulty by its readings"])
def test_a_node_that_has_given_up_its_ranks_gets_some_before_the_job_waits_for_nobody(then: str) -> None:
    scene = Scene(failure_rules=too_often(1))
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    if then == "another is lost before":
        scene.killed(3, pid=0)
        scene.lose(0)
        assert scene.state.roster.seats == ["node1", "node2"]
    elif then == "its successor is lost":
        scene.killed(3, pid=0)
        scene.lose(2)
        assert scene.state.roster.seats == ["node0", "node1"]
    else:  # a spare that never had ranks is not trusted with any
        scene.state.roster.vacate("node2", NodeRole.FAULTY)
        scene.lose(0)
        assert scene.state.roster.seats == [None, "node1"]
    assert bool(scene.notes("kept_on_node")) is (then != "it is faulty by its readings")


def test_recoveries_without_progress_end_the_job() -> None:
    scene = Scene(max_recoveries_without_progress=2, failure_rules=too_often(99))
    scene.start(commit_step=4)
    for generation in (2, 3):
        scene.killed(3, pid=0)
        assert scene.state.generation == generation
        scene.recover(step=4, survivors=[0, 1, 2], joiners=[3])
        scene.bring_up(4)
    scene.killed(3, pid=0)
    assert scene.end().exit_code == 1
    assert "no new committed step" in scene.end().root_cause


def test_failures_in_the_first_step_again_and_again_end_the_job() -> None:
    """Each time S_0 is committed anew, which is no progress."""
    scene = Scene(max_recoveries_without_progress=2, failure_rules=too_often(99))
    scene.start(commit_step=0)
    for generation in (3, 5):
        scene.killed(3, pid=0)
        scene.open_store()
        scene.prepare(0, 1, 2, live_step=0, commit_step=0, live_generation=generation - 2)
        scene.prepare(3)
        for node in range(3):
            scene.report(node, *scene.vault(node, 0, generation - 2))
        scene.open_store()
        assert scene.state.generation == generation
        scene.say(1, messages.RankJoined(generation=generation, rank=2, pid=70 + generation))
        scene.heartbeat(step=0, commit_step=0)
    scene.killed(3, pid=0)
    assert "2 recoveries in a row" in scene.end().root_cause


def test_progress_forgives_earlier_recoveries() -> None:
    scene = Scene(max_recoveries_without_progress=2, failure_rules=too_often(99))
    scene.start(commit_step=4)
    for step in (5, 6, 7, 8):
        generation = scene.state.generation
        scene.killed(3, pid=0)
        scene.recover(step=step, survivors=[0, 1, 2], joiners=[3], generation=generation)
        scene.bring_up(step)
    assert scene.state.phase is Phase.RUN
