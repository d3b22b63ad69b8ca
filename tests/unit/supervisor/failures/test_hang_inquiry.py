"""A hang from the stalled steps to the recovery: what is asked, what is said, who is killed."""

from supervising import Scene

from deadpool.proto import messages
from deadpool.supervisor.model.phase import Phase


def _stalled(scene: Scene, *, sure: bool = False) -> None:
    scene.stall(40.0, sure=sure)
    assert [node for node, _ in scene.took(messages.ReportCalls)] == [0, 1]


def _calls(rank: int, *, entered: int, completed: int, step: int = 4) -> messages.RankCalls:
    call = messages.GroupCall(group="0", operation="allreduce", entered=entered, completed=completed)
    return messages.RankCalls(rank=rank, pid=1000 + rank, step=step, groups=(call,), stacks=f"/logs/stacks-rank-{rank}.txt")


def _report(scene: Scene, node: int, *calls: messages.RankCalls) -> None:
    scene.say(node, messages.CallReport(generation=scene.state.generation, ranks=calls))


def _hang(scene: Scene) -> None:
    """Rank 2 has not entered call 8; everybody is asked, everybody answers."""
    _stalled(scene)
    _report(scene, 0, _calls(0, entered=8, completed=7), _calls(1, entered=8, completed=7))
    _report(scene, 1, _calls(2, entered=7, completed=7), _calls(3, entered=8, completed=7))


def _scene() -> Scene:
    scene = Scene()
    scene.start(commit_step=4)
    scene.forget()
    return scene


def test_the_culprit_is_named_killed_and_replaced_on_its_node() -> None:
    scene = _scene()
    _hang(scene)
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (2,))]
    (note,) = scene.notes("hang")
    assert note.fields["rank"] == 2
    assert note.fields["group"] == "0"
    assert note.fields["call"] == 8
    assert note.fields["operation"] == "allreduce"
    assert note.fields["stacks"] == ("/logs/stacks-rank-2.txt",)
    scene.killed(2)
    assert [(node, order.placements[0].rank) for node, order in scene.took(messages.Assign)] == [(1, 2)]
    (failure,) = scene.notes("failure")
    assert failure.fields["failure_class"] == "transient"
    assert "rank 2 on node1 hangs: it has not entered call 8 (allreduce) of group 0" in str(failure.fields["cause"])


def test_steps_that_advance_while_the_agents_are_asked_end_the_suspicion() -> None:
    scene = _scene()
    _stalled(scene)
    _report(scene, 0, _calls(0, entered=8, completed=7), _calls(1, entered=8, completed=7))
    _report(scene, 1, _calls(2, entered=7, completed=7, step=5), _calls(3, entered=8, completed=7))
    assert not scene.took(messages.KillRanks)
    assert scene.notes("progress_again")


def test_between_steps_a_learned_timeout_proves_nothing() -> None:
    scene = _scene()
    _stalled(scene)
    for node in (0, 1):
        _report(scene, node, *(_calls(rank, entered=7, completed=7) for rank in (2 * node, 2 * node + 1)))
    assert scene.state.phase is Phase.RUN
    assert scene.notes("no_hang")


def test_the_users_timeout_reforms_the_job_even_if_nobody_is_to_blame() -> None:
    scene = _scene()
    _stalled(scene, sure=True)
    for node in (0, 1):
        _report(scene, node, *(_calls(rank, entered=7, completed=7) for rank in (2 * node, 2 * node + 1)))
    assert scene.state.phase is Phase.RECOVER
    assert scene.took(messages.Quiesce)


def test_an_agent_that_does_not_answer_is_not_waited_for() -> None:
    scene = _scene()
    _stalled(scene)
    _report(scene, 1, _calls(2, entered=7, completed=7), _calls(3, entered=8, completed=7))
    scene.wait(10.1)
    assert [order.ranks for _, order in scene.took(messages.KillRanks)] == [(2,)]


def test_a_node_that_cannot_kill_the_culprit_is_not_trusted_any_more() -> None:
    scene = _scene()
    _hang(scene)
    scene.wait(10.1)
    (failure,) = scene.notes("failure")
    assert failure.fields["failure_class"] == "permanent"
    assert [node for node, _ in scene.took(messages.Assign)] == [2]


def test_a_report_about_a_generation_that_is_over_changes_nothing() -> None:
    scene = _scene()
    _stalled(scene)
    scene.killed(0)
    assert scene.state.phase is Phase.RECOVER
    scene.say(0, messages.CallReport(generation=1, ranks=()))
    scene.stall(40.0, generation=1)
    assert not scene.took(messages.KillRanks)


def test_a_node_whose_rank_hangs_a_second_time_gives_up_its_seat() -> None:
    scene = _scene()
    _hang(scene)
    scene.killed(2)
    scene.recover(step=5, survivors=[0, 1, 3], joiners=[2])
    scene.bring_up(5)
    scene.heartbeat(step=6, commit_step=6)
    scene.forget()
    scene.stall(40.0)
    _report(scene, 0, _calls(0, entered=8, completed=7, step=6), _calls(1, entered=8, completed=7, step=6))
    _report(scene, 1, _calls(2, entered=7, completed=7, step=6), _calls(3, entered=8, completed=7, step=6))
    scene.killed(2)
    assert scene.notes("diagnosis")[-1].fields["rule"] == "hangs-again"
    assert [node for node, _ in scene.took(messages.Assign)] == [2]


def test_ranks_that_wait_at_the_end_do_not_hang() -> None:
    scene = _scene()
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=1, rank=rank, step=9))
    assert scene.state.phase is Phase.FINISH
    scene.stall(900.0, sure=True)
    assert not scene.took(messages.ReportCalls)


def test_a_script_without_hooks_is_not_watched() -> None:
    scene = Scene()
    scene.start(hooked=False)
    scene.stall(900.0, sure=True)
    assert not scene.took(messages.ReportCalls)


def test_the_first_step_after_a_recovery_is_watched() -> None:
    scene = _scene()
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankReformed(generation=2, rank=rank))
        scene.say(scene.home(rank), messages.RankRestored(generation=2, rank=rank, step=5, bytes_restored=0))
    scene.forget()
    scene.stall(40.0)
    assert [node for node, _ in scene.took(messages.ReportCalls)] == [0, 1]
    _report(scene, 0, _calls(0, entered=2, completed=1, step=5), _calls(1, entered=2, completed=1, step=5))
    _report(scene, 1, _calls(2, entered=1, completed=1, step=5), _calls(3, entered=2, completed=1, step=5))
    scene.killed(2)
    assert scene.state.generation == 3
