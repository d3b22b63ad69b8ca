"""How a job ends: all ranks finish and are released, an error that will come again, a launch that is refused, a signal."""

import signal

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.supervisor.model.phase import Phase


def test_exception_before_any_commit_is_fatal() -> None:
    scene = Scene()
    scene.start()
    scene.exits(3, 1, error="Traceback...\nValueError: bad shape")
    assert scene.end().exit_code == 1
    assert scene.end().root_cause == "rank 3 on node1 failed: exit code 1\nTraceback...\nValueError: bad shape"
    assert {node for node, _ in scene.took(messages.Stop)} == {0, 1, 2}


@pytest.mark.parametrize("hooked", [True, False])
def test_what_a_rank_refuses_before_any_commit_is_the_users_to_mend(hooked: bool) -> None:
    scene = Scene(max_restarts=3)
    scene.start(hooked=hooked)
    error = "Traceback...\n  File...\ndeadpool.host.errors.ConfigError: deadpool.join(): only 3 more processes"
    scene.exits(3, 1, error=error)
    assert (scene.end().exit_code, scene.end().root_cause) == (2, "node1: deadpool.join(): only 3 more processes")


def test_later_it_is_an_error_like_others() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.exits(3, 1, error="deadpool.host.errors.ConfigError: deadpool.join(): only 3 more processes and threads can be started")
    assert scene.notes("diagnosis")[-1].fields["rule"] == "no-process-left"
    assert scene.state.roster.nodes["node1"].role == "faulty"


def test_the_same_exception_at_the_same_step_is_fatal() -> None:
    scene = Scene()
    scene.start(commit_step=2)
    error = "Traceback...\nValueError: bad batch"
    scene.exits(3, 1, error=error, step=3, commit_step=2)
    scene.recover(step=3, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(3)
    scene.exits(3, 1, error=error, step=3, commit_step=2, pid=0)
    assert scene.end().exit_code == 1
    assert scene.end().root_cause.endswith("ValueError: bad batch")


def test_the_same_exception_on_every_rank_is_fatal() -> None:
    scene = Scene()
    scene.start(commit_step=2)
    for rank in range(4):
        assert scene.state.phase is not Phase.END
        scene.exits(rank, 1, error="Traceback...\nValueError: bad batch", step=3, commit_step=2, generation=1)
    assert scene.end().exit_code == 1
    assert scene.notes("diagnosis")[-1].fields["rule"] == "same-error-everywhere"


def test_launch_that_the_user_must_mend_ends_with_2() -> None:
    scene = Scene()
    for node in range(3):
        scene.hello(node)
    scene.say(1, messages.LaunchFailed(generation=0, reason="no module named torch"))
    assert scene.end().exit_code == 2
    assert scene.end().root_cause == "node1: no module named torch"


def test_node_that_cannot_launch_later_is_passed_over() -> None:
    scene = Scene(spares=2)
    scene.start(commit_step=4)
    scene.lose(1)
    scene.forget()
    scene.say(2, messages.LaunchFailed(generation=2, reason="/dev/shm too small"))
    assert [node for node, _ in scene.took(messages.Assign)] == [3]
    assert scene.state.roster.nodes["node2"].role == "faulty"


def test_finish() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    for rank in range(4):
        assert not scene.took(messages.Release)
        scene.say(scene.home(rank), messages.RankFinished(generation=1, rank=rank, step=10))
    assert [node for node, _ in scene.took(messages.Release)] == [0, 1]
    assert scene.state.phase is Phase.FINISH
    for rank in range(4):
        scene.exits(rank, 0)
    assert scene.end().exit_code == 0
    for node in range(3):
        assert not scene.has_quit()
        scene.say(node, messages.Stopped())
    assert scene.has_quit()


@pytest.mark.parametrize(
    ("number", "options", "ends"),
    [
        (signal.SIGUSR1, {}, True),
        (signal.SIGUSR1, {"checkpoint_dir": "/checkpoints"}, False),
        (signal.SIGUSR1, {"checkpoint_dir": "/checkpoints", "signals": "SIGUSR1"}, True),
        (signal.SIGUSR2, {"checkpoint_dir": "/checkpoints"}, True),
    ],
)
def test_a_signal_to_all_nodes_means_what_it_means_to_the_launcher(number: int, options: dict[str, str], ends: bool) -> None:
    scene = Scene(**options)
    scene.start(commit_step=3)
    for node in range(3):
        scene.say(node, messages.JobSignalled(signal=number))
    assert (scene.state.phase is Phase.END) == ends
    if ends:
        assert {stop.signal_number for _, stop in scene.took(messages.Stop)} == {number}
    else:
        assert len(scene.took(messages.WriteCheckpoint)) == 1


def test_agent_that_does_not_stop_is_given_up() -> None:
    scene = Scene()
    scene.start()
    scene.stop(143)
    scene.say(0, messages.Stopped())
    scene.lose(1)
    assert not scene.has_quit()
    scene.wait(60.0)
    assert scene.has_quit()
    assert scene.end().exit_code == 143
    assert scene.end().root_cause == ""


def test_node_is_not_missed_once_its_ranks_are_done() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=1, rank=rank, step=10))
    scene.exits(2, 0)
    scene.exits(3, 0)
    scene.lose(1)
    assert scene.state.phase is Phase.FINISH
    scene.exits(0, 0)
    scene.exits(1, 0)
    assert scene.end().exit_code == 0


def test_failure_after_release_brings_all_ranks_back_from_the_vault() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=1, rank=rank, step=10))
    scene.exits(0, 0)
    scene.forget()
    scene.killed(3)
    assert scene.state.generation == 2
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(0, (1,)), (1, (2,))]
    scene.killed(1)
    scene.killed(2)
    assert scene.state.generation == 2
    assigned = [placement.rank for _, order in scene.took(messages.Assign) for placement in order.placements]
    assert sorted(assigned) == [0, 1, 2, 3]
    scene.recover(step=10, survivors=[], joiners=[0, 1, 2, 3])
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=2, rank=rank, step=10))
    assert scene.state.phase is Phase.FINISH


def finished(scene: Scene, step: int) -> None:
    """Every rank's loop is done, and all are released."""
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=scene.state.generation, rank=rank, step=step))
    assert scene.state.phase is Phase.FINISH


def test_a_process_that_dies_while_it_exits_has_done_its_work() -> None:
    """A signal in the interpreter's last moments: reported once, and nothing is done again."""
    scene = Scene()
    scene.start(commit_step=8)
    finished(scene, 8)
    scene.forget()
    scene.exits(2, 134, signal=6, script_ended=True)
    assert [note.fields["rank"] for note in scene.notes("died_exiting")] == [2]
    for rank in (0, 1, 3):
        scene.exits(rank, 0, script_ended=True)
    assert scene.end().exit_code == 0
    assert not scene.took(messages.Quiesce)
    assert not scene.notes("failure")


def test_a_process_that_dies_after_its_release_and_before_its_scripts_end_has_not() -> None:
    scene = Scene()
    scene.start(commit_step=8)
    finished(scene, 8)
    scene.exits(2, 139, signal=11)
    assert scene.state.phase is Phase.RECOVER


def test_a_node_that_has_stopped_as_told_is_not_called_lost() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.stop()
    scene.say(0, messages.Stopped())
    scene.lose(0)
    assert not scene.notes("node_lost")
    scene.lose(1)
    assert [note.fields["node"] for note in scene.notes("node_lost")] == ["node1"]
