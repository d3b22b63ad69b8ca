"""A job's life around its recoveries: assembly, unhooked scripts, fatal errors, the end, and what comes too late."""

import itertools
import signal

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP
from deadpool.supervisor.core import Job
from deadpool.supervisor.model.commands import SendOrder
from deadpool.supervisor.model.phase import MOVES, Phase


def test_the_job_starts_when_all_nodes_are_there() -> None:
    scene = Scene()
    scene.hello(2)
    scene.hello(0)
    assert not scene.took(messages.OpenStore)
    scene.hello(1)
    assert [node for node, _ in scene.took(messages.OpenStore)] == [0]
    assert scene.state.roster.seats == ["node0", "node1"]
    scene.say(0, messages.StoreOpened(generation=1, host="h", port=7))
    placed = {p.rank: (node, p.local_rank, p.node_rank) for node, o in scene.took(messages.StartRanks) for p in o.placements}
    assert placed == {0: (0, 0, 0), 1: (0, 1, 0), 2: (1, 0, 1), 3: (1, 1, 1)}


def test_on_one_machine_all_nodes_are_on_their_way_and_are_waited_for_longer() -> None:
    scene = Scene()
    scene.hello(1)
    scene.hello(2)
    scene.wait(29.0)
    assert scene.state.phase is Phase.ASSEMBLE
    scene.hello(0)
    assert scene.state.roster.seats == ["node0", "node1"]


def test_but_not_for_ever_where_nodes_enough_are_there() -> None:
    scene = Scene()
    scene.hello(1)
    scene.hello(2)
    scene.wait(29.9)
    assert not scene.took(messages.OpenStore)
    scene.wait(0.2)
    assert scene.took(messages.OpenStore)
    assert scene.state.roster.seats == ["node1", "node2"]


def test_spares_that_do_not_come_are_waited_for_two_seconds() -> None:
    scene = Scene(standalone=False)
    scene.hello(0)
    scene.wait(60.0)
    scene.hello(1)
    scene.wait(1.9)
    assert not scene.took(messages.OpenStore)
    scene.wait(0.2)
    assert scene.took(messages.OpenStore)


def test_node_that_leaves_before_the_start_is_not_counted() -> None:
    scene = Scene(standalone=False)
    scene.hello(0)
    scene.hello(1)
    scene.lose(1)
    scene.wait(60.0)
    assert scene.state.phase is Phase.ASSEMBLE
    scene.hello(2)
    scene.wait(2.1)
    assert scene.state.roster.seats == ["node0", "node2"]


def test_node_that_is_lost_while_the_store_opens_costs_nothing() -> None:
    scene = Scene()
    for node in range(3):
        scene.hello(node)
    scene.lose(0)
    scene.say(0, messages.StoreOpened(generation=1, host="h", port=7))
    assert scene.state.roster.seats == ["node2", "node1"]
    scene.open_store()
    assert [node for node, _ in scene.took(messages.StartRanks)] == [2, 1]


def test_store_that_does_not_open_is_asked_of_another_member() -> None:
    scene = Scene()
    for node in range(3):
        scene.hello(node)
    scene.forget()
    scene.wait(61.0)
    assert [node for node, _ in scene.took(messages.OpenStore)] == [1]


def test_first_join_warms_stand_ins_up() -> None:
    scene = Scene()
    scene.start(hooked=False)
    scene.forget()
    scene.say(0, messages.RankJoined(generation=1, rank=0, pid=1000))
    assert [(node, order.standins) for node, order in scene.took(messages.WarmUp)] == [(0, 1), (1, 1), (2, 2)]
    scene.forget()
    scene.say(0, messages.RankJoined(generation=1, rank=1, pid=1001))
    assert not scene.took(messages.WarmUp)


def test_unhooked_ranks_restart_together_up_to_max_restarts() -> None:
    scene = Scene(max_restarts=1)
    scene.start(hooked=False)
    scene.forget()
    scene.exits(1, 3, log_tail="boom")
    assert scene.state.generation == 2
    scene.open_store()
    starts = scene.took(messages.StartRanks)
    assert [(node, order.restart_count) for node, order in starts] == [(0, 1), (1, 1)]
    scene.heartbeat(step=NO_STEP)
    scene.exits(1, 3, log_tail="boom")
    assert scene.end().exit_code == 1
    assert scene.end().root_cause == "rank 1 on node0 failed: exit code 3\nboom"


def test_unhooked_job_uses_its_spare() -> None:
    scene = Scene(max_restarts=1)
    scene.start(hooked=False)
    scene.forget()
    scene.lose(1)
    scene.open_store()
    assert [node for node, _ in scene.took(messages.StartRanks)] == [0, 2]
    scene.heartbeat(step=NO_STEP)
    assert scene.notes("restarted")  # what is not known here is not said: that they have made a step
    assert not scene.notes("recovered")
    (record,) = scene.state.recovery.records
    assert (record.resume_step, record.steps_reexecuted, record.phases_s.first_step) == (NO_STEP, 0, 0.0)


def seats(scene: Scene) -> dict[int, tuple[int, int]]:
    """Returns the ranks as they were started: rank -> (node, how many ranks there are)."""
    return {place.rank: (node, order.world_size) for node, order in scene.took(messages.StartRanks) for place in order.placements}


def test_with_a_range_of_nodes_an_unhooked_job_goes_on_with_fewer_and_grows_again() -> None:
    scene = Scene(max_restarts=1, min_nnodes=1, spares=0)
    scene.start(hooked=False)
    scene.forget()
    scene.lose(0)
    scene.open_store()
    assert seats(scene) == {0: (1, 2), 1: (1, 2)}
    assert all(order.master_node_count == 1 for _, order in scene.took(messages.StartRanks))
    scene.heartbeat(step=NO_STEP, nodes=[1])
    assert scene.state.phase is Phase.RUN
    scene.forget()
    scene.hello(0)
    scene.open_store()
    assert seats(scene) == {0: (1, 4), 1: (1, 4), 2: (0, 4), 3: (0, 4)}
    assert {order.restart_count for _, order in scene.took(messages.StartRanks)} == {1}  # growing counts as no restart
    for rank in range(4):
        scene.exits(rank, 0)
    assert scene.end().exit_code == 0


def test_a_job_with_a_range_of_nodes_takes_a_spare_first_and_waits_below_the_least() -> None:
    scene = Scene(max_restarts=9, min_nnodes=1)
    scene.start(hooked=False)
    scene.forget()
    scene.lose(1)
    scene.open_store()
    assert seats(scene) == {0: (0, 4), 1: (0, 4), 2: (2, 4), 3: (2, 4)}
    scene.forget()
    scene.lose(0)
    scene.lose(2)
    assert scene.state.roster.vacancies() == [0]
    scene.hello(1)
    scene.open_store()
    assert seats(scene)[0] == (1, 2)


def test_a_hooked_job_keeps_its_size() -> None:
    scene = Scene(min_nnodes=1, spares=0)
    scene.start()
    scene.lose(1)
    assert scene.state.roster.vacancies() == [1]


def test_unhooked_job_is_done_when_all_ranks_exit_with_0() -> None:
    scene = Scene()
    scene.start(hooked=False)
    for rank in range(4):
        scene.exits(rank, 0)
    assert scene.end().exit_code == 0
    assert scene.end().root_cause == ""


def test_exception_before_any_commit_is_fatal() -> None:
    scene = Scene()
    scene.start()
    scene.exits(3, 1, error="Traceback...\nValueError: bad shape")
    assert scene.end().exit_code == 1
    assert scene.end().root_cause == "rank 3 on node1 failed: exit code 1\nTraceback...\nValueError: bad shape"
    assert {node for node, _ in scene.took(messages.Stop)} == {0, 1, 2}


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


def test_rank_that_leaves_its_loop_early_is_done() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    for rank in (0, 1, 2):
        scene.exits(rank, 0)
    assert scene.state.phase is Phase.RUN
    scene.exits(3, 0)
    assert scene.end().exit_code == 0


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


def test_two_streams_of_one_node() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.forget()
    scene.hello(1)
    assert scene.state.generation == 2
    assert scene.state.roster.seats == ["node0", "node2"]
    assert scene.took(messages.Welcome)[-1][0] == 1
    assert scene.state.roster.nodes["node1"].role == "spare"


def test_a_node_that_comes_back_is_a_spare_again() -> None:
    scene = Scene(spares=1)
    scene.start(commit_step=4)
    scene.lose(1)
    scene.recover(step=4, survivors=[0, 1], joiners=[2, 3])
    scene.bring_up(4)
    scene.forget()
    scene.hello(1)
    ((_, welcome),) = scene.took(messages.Welcome)
    assert welcome.generation == 2
    assert scene.took(messages.WarmUp) == [(1, messages.WarmUp(standins=2))]
    scene.lose(0)
    assert [node for node, _ in scene.took(messages.Assign)] == [1]


_LATE: list[messages.AgentMessage] = [
    messages.StoreOpened(generation=1, host="old", port=1),
    messages.VaultReport(generation=1),
    messages.RankBroken(generation=1, rank=0, error="closed"),
    messages.RankPrepared(generation=1, rank=0, live_generation=1, live_step=99, commit_step=99),
    messages.RankReformed(generation=1, rank=0),
    messages.RankRestored(generation=1, rank=0, step=99, bytes_restored=0),
    messages.RankFailed(generation=1, rank=0, phase="reform", error="refused"),
    messages.RankResumed(generation=1, rank=0, step=99, at_ns=0),
    messages.RankFinished(generation=1, rank=0, step=99),
    messages.Heartbeat(
        generation=1,
        ranks=(messages.RankProgress(rank=0, pid=5, step=99, commit_step=99, steps_done=9, exposed_stall_s=0.0),),
    ),
]


@pytest.mark.parametrize("late", _LATE, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("stage", range(4))
def test_what_an_old_generation_says_changes_nothing(late: messages.AgentMessage, stage: int) -> None:
    scenes = [Scene(), Scene()]
    for scene in scenes:
        scene.start(commit_step=4)
        scene.killed(3)
        if stage >= 1:
            scene.open_store()
            scene.prepare(1, 2, live_step=5, commit_step=4)
        if stage >= 2:
            scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
        if stage >= 3:
            scene.bring_up(5)
    scenes[0].forget()
    scenes[0].say(0, late)
    assert scenes[0].state == scenes[1].state
    assert not scenes[0].took(messages.Quiesce)


def test_exit_of_a_replaced_process_changes_nothing() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.lose(1)
    scene.killed(3, generation=1, pid=1003)
    assert scene.state.generation == 2
    scene.say(1, messages.RankExited(generation=2, rank=3, pid=1003, exit_code=137, signal=9))
    assert scene.state.generation == 2


def test_exit_of_a_survivor_that_was_not_told_yet_counts() -> None:
    """Its agent reports it in the generation that it knew, which is not the newest."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.forget()
    scene.killed(0, generation=1)
    assert scene.state.generation == 3
    assert [(node, [p.rank for p in order.placements]) for node, order in scene.took(messages.Assign)] == [(0, [0])]


def test_every_phase_can_end_and_none_is_unreachable() -> None:
    assert all(Phase.END in moves for phase, moves in MOVES.items() if phase is not Phase.END)
    reachable = {Phase.ASSEMBLE} | set(itertools.chain.from_iterable(MOVES.values()))
    assert reachable == set(Phase)


def test_commands_name_their_cause() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.forget()
    scene.killed(3)
    causes = {each.cause for each in scene.commands if isinstance(each, SendOrder) and isinstance(each.order, messages.Quiesce)}
    assert causes == {f"{scene._event_id} RankExited"}


def test_the_same_events_make_an_equal_job() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.say(0, messages.RankBroken(generation=1, rank=0, error="closed"))
    scene.wait(1.0)
    scene.recover(step=5, survivors=[0, 1, 2, 3], joiners=[])
    scene.bring_up(5)
    scene.lose(1)
    job = Job(scene.config)
    for event, now_s in scene.past:
        if event is None:
            job.tick(now_s=now_s)
        else:
            job.handle(event, now_s=now_s)
    assert job.state == scene.state


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


def breaks(scene: Scene, rank: int) -> None:
    broken = messages.RankBroken(generation=scene.state.generation, rank=rank, error="connection closed by peer")
    scene.say(scene.home(rank), broken)


def test_a_rank_that_exits_with_0_in_a_step_is_the_root_cause_of_what_follows() -> None:
    """Named in the first failure; the second time it is the script that is at fault."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.exits(2, 0, step=5, script_ended=True)
    breaks(scene, 0)
    scene.wait(1.0)
    (failure,) = scene.notes("failure")
    cause = "rank 2 on node1 exited with 0 in step 5: its loop was not done, and others wait for it"
    assert (failure.fields["cause"], failure.fields["ranks"]) == (cause, (2,))
    scene.recover(step=5, survivors=[0, 1, 3], joiners=[2])
    scene.bring_up(5)
    scene.exits(2, 0, step=5, script_ended=True)
    breaks(scene, 1)
    scene.wait(1.0)
    assert (scene.end().exit_code, scene.end().root_cause) == (1, cause)


def test_it_is_so_too_where_the_others_hang() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.exits(2, 0, step=5, script_ended=True)
    scene.stall(31.0, sure=True)
    for node in (0, 1):
        calls = messages.GroupCall(group="dp", operation="allreduce", entered=9, completed=8)
        ranks = [messages.RankCalls(rank=rank.rank, pid=rank.pid, step=4, groups=(calls,)) for rank in scene.present(node)]
        scene.say(node, messages.CallReport(generation=1, ranks=tuple(ranks)))
    assert [note.fields["ranks"] for note in scene.notes("failure")] == [(2,)]


def test_ranks_that_all_exit_with_0_have_agreed_to_stop() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    for rank in range(4):
        scene.exits(rank, 0, step=5, script_ended=True)
        scene.wait(5.0)
    assert scene.end().exit_code == 0
