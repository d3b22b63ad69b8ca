"""Draining a node: its ranks move to a spare at a step boundary, and it has none again until it is asked back or started anew."""

import pytest
from supervising import Scene, replica, snapshot

from deadpool.proto import messages
from deadpool.proto.config import OnExhausted
from deadpool.proto.messages import SourceKind
from deadpool.supervisor.model.phase import Phase


def training(**options: object) -> Scene:
    scene = Scene(**options)
    scene.start(commit_step=4)
    scene.forget()
    return scene


def leave(scene: Scene, *ranks: int, step: int, node: int = 1) -> None:
    """The processes on the drained node reach their boundary; what they hold is in its vault."""
    for rank in ranks:
        prepared = messages.RankPrepared(
            generation=scene.state.generation, rank=rank, live_generation=1, live_step=step, commit_step=4
        )
        scene.say(node, prepared)
    scene.report(node, *(snapshot(rank, step) for rank in (2, 3)), replica(0, 4), replica(1, 4))


def rehearse(scene: Scene, node: int = 2, ranks: tuple[int, ...] = (2, 3)) -> None:
    """The spare's stand-ins construct and rehearse; with the last one it is hot."""
    generation = scene.state.generation
    for rank in ranks:
        scene.say(node, messages.RankJoined(generation=generation, rank=rank, pid=2000 + 100 * node + rank, hot=True))
    for rank in ranks:
        prepared = messages.RankPrepared(
            generation=generation, rank=rank, live_generation=0, live_step=-1, commit_step=-1, hot=True
        )
        scene.say(node, prepared)


def drain(scene: Scene) -> None:
    """Node 1 is drained: its ranks are to move now."""
    assert scene.drain("node1") == ""
    rehearse(scene)


def drained(scene: Scene) -> messages.Reform:
    """Node 1 is drained, all are in step 5."""
    drain(scene)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.prepare(2, 3)
    scene.report(0, *(snapshot(rank, 5) for rank in (0, 1)), replica(2, 4), replica(3, 4))
    scene.report(2)
    scene.report(1)
    assert not scene.took(messages.Reform), "the processes on the drained node are still in their step"
    leave(scene, 2, 3, step=5)
    return scene.took(messages.Reform)[-1][1]


def test_the_ranks_move_with_the_state_of_the_step_that_all_have() -> None:
    scene = training()
    plan = drained(scene)
    assigned = [(node, [each.rank for each in order.placements], order.hot) for node, order in scene.took(messages.Assign)]
    assert assigned == [(2, [2, 3], True), (2, [2, 3], False)]
    assert plan.resume_step == 5, "nothing is replicated of it yet, but the node lives"
    sources = {source.rank: source.kind for _, order in scene.took(messages.Reform) for source in order.sources}
    assert sources == dict.fromkeys((0, 1), SourceKind.LIVE) | dict.fromkeys((2, 3), SourceKind.ELSEWHERE)
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (2, 3))]
    assert (1, messages.WarmUp(standins=0)) in scene.took(messages.WarmUp)
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert (record.failure_class, record.ranks, record.spare, record.steps_reexecuted) == ("planned", (2, 3), "node2", 1)
    assert record.survivors_kept_processes
    assert not scene.notes("failure")
    assert scene.state.recovery.fruitless == 0
    assert scene.state.recovery.holders == {"node0", "node2"}


def test_it_has_no_rank_again_until_it_is_asked_back() -> None:
    scene = training()
    drained(scene)
    scene.bring_up(5)
    scene.forget()
    scene.lose(2)
    assert scene.state.roster.seats == ["node0", None]
    assert scene.drain("1", undo=True) == ""
    assert scene.state.roster.seats == ["node0", "node1"]
    assert [node for node, _ in scene.took(messages.Assign)] == [1]


def test_it_is_a_spare_when_it_is_started_anew_not_when_it_comes_back() -> None:
    scene = training()
    drained(scene)
    scene.bring_up(5)
    hello = messages.Hello(node_id="node1", hint=1, host="h", port=1, pid=7, generation=0)
    scene.lose(1)
    scene.say(1, hello)
    assert scene.state.roster.nodes["node1"].role == "spare"
    scene.drain("node1")
    scene.lose(1)
    scene.say(1, hello)
    assert scene.state.roster.nodes["node1"].role == "drained"


def test_a_spare_is_drained_without_a_recovery_unless_it_keeps_replicas() -> None:
    scene = training()
    assert scene.drain("node2") == ""
    assert (scene.state.phase, scene.state.roster.nodes["node2"].role) == (Phase.RUN, "drained")
    scene = training(nnodes=1, nproc_per_node=1, spares=2)
    assert scene.state.recovery.holders == {"node1"}
    assert scene.drain("node1") == ""
    assert scene.state.phase is Phase.RECOVER
    scene.recover(step=5, survivors=[0], joiners=[])
    assert scene.state.recovery.holders == {"node2"}


@pytest.mark.parametrize("on_exhausted", list(OnExhausted))
def test_without_a_spare_nothing_changes(on_exhausted: OnExhausted) -> None:
    scene = training(spares=0, on_exhausted=on_exhausted)
    assert "no spare is left" in scene.drain("node1")
    assert (scene.state.phase, scene.state.generation) == (Phase.RUN, 1)


def test_what_cannot_be_drained() -> None:
    scene = Scene()
    scene.hello(0)
    assert "has not begun" in "".join(scene.drain(each) for each in ("node0",)) or scene.state.phase is Phase.ASSEMBLE
    scene = Scene()
    scene.start(hooked=False)
    assert "no deadpool.join()" in scene.drain("node1")
    assert "no live node 'node9'" in scene.drain("node9")
    assert "is not drained: it is a member" in scene.drain("node1", undo=True)
    scene = training()
    scene.killed(0)
    assert "the job recovers" in scene.drain("node1")


def test_when_the_spare_fails_and_there_is_no_other_the_node_keeps_its_ranks() -> None:
    scene = training(on_exhausted=OnExhausted.ABORT)
    drain(scene)
    scene.forget()
    scene.lose(2)
    assert scene.state.roster.seats == ["node0", "node1"]
    assert [note.fields["node"] for note in scene.notes("drain_undone")] == ["node1"]
    assert [node for node, _ in scene.took(messages.KillRanks)] == [1]
    assert [node for node, _ in scene.took(messages.Assign)] == [1]


def test_what_a_process_leaves_behind_on_a_node_that_is_taken_back_counts() -> None:
    """Its loop body was not through: it must be done again, whoever plays the rank."""
    scene = training()
    drain(scene)
    scene.lose(2)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4, yielded=5)
    scene.prepare(2, 3)
    scene.report(0, *(slot for step in (4, 5) for rank in (0, 1) for slot in (snapshot(rank, step), replica(rank + 2, step))))
    scene.report(1, *(snapshot(rank, step) for step in (4, 5) for rank in (2, 3)))
    assert not scene.took(messages.Reform), "how far the scripts on the drained node were is not known yet"
    for rank in (2, 3):
        scene.say(1, messages.RankExited(generation=1, rank=rank, pid=1000 + rank, exit_code=137, signal=9, step=5, yielded=4))
    assert scene.took(messages.Reform)[-1][1].resume_step == 4


def test_processes_that_never_reach_their_boundary_are_not_awaited_for_ever() -> None:
    scene = training()
    drain(scene)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.prepare(2, 3)
    for node in range(3):
        scene.report(node, *scene.vault(node, 4))
    assert not scene.took(messages.Reform)
    scene.wait(scene.config.quiesce_timeout_s)
    assert scene.took(messages.Reform)[-1][1].resume_step == 4
    assert [(node, order.ranks) for node, order in scene.took(messages.KillRanks)] == [(1, (2, 3))]


def test_the_drained_node_dies_meanwhile() -> None:
    scene = training()
    drain(scene)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.prepare(2, 3)
    scene.report(0, *scene.vault(0, 4))
    scene.report(2)
    scene.lose(1)
    assert scene.took(messages.Reform)[-1][1].resume_step == 4
    scene.bring_up(4)
    assert scene.state.phase is Phase.RUN


# ------------------------------------------------------------ the spare gets hot first


def test_all_train_on_while_the_spare_gets_hot() -> None:
    scene = training()
    assert scene.drain("node1") == ""
    assert (scene.state.phase, scene.state.generation) == (Phase.RUN, 1)
    ((node, order),) = scene.took(messages.Assign)
    assert (node, order.hot, order.generation) == (2, True, 1)
    assert [each.node_id for each in order.placements] == ["node2", "node2"]
    assert not scene.took(messages.Quiesce)
    assert scene.drain("node1") == "", "asked twice"
    rehearse(scene, ranks=(2,))
    assert scene.state.phase is Phase.RUN
    rehearse(scene, ranks=(3,))
    assert (scene.state.phase, scene.state.generation) == (Phase.RECOVER, 2)
    assert scene.state.roster.seats == ["node0", "node2"]
    assert [(rank.pid, rank.since, rank.joining) for rank in scene.state.roster.ranks[2:]] == [(0, 2, True)] * 2
    late = messages.RankExited(generation=1, rank=2, pid=2202, exit_code=137, signal=9, hot=True)
    scene.say(2, late)
    assert scene.state.generation == 2, "it ended before it got the rank: its agent starts another one"


def test_where_a_later_loop_begins_all_go_on_to_its_first_state_before_the_ranks_move() -> None:
    """Who has been through what is between two loops cannot be before it again: processes would be replaced for nothing."""
    scene = training()
    assert scene.drain("node1") == ""
    for said in (messages.RankFinished, messages.RankReopened):
        for rank in range(4):
            scene.say(scene.home(rank), said(generation=1, rank=rank, step=4))
    rehearse(scene)
    assert (scene.state.phase, scene.state.generation) == (Phase.RUN, 1)
    scene.heartbeat(step=5, commit_step=5)
    assert (scene.state.phase, scene.state.generation) == (Phase.RECOVER, 2)


def test_a_drain_is_taken_back_while_the_spare_gets_hot() -> None:
    scene = training()
    scene.drain("node1")
    scene.forget()
    assert scene.drain("node1", undo=True) == ""
    ((node, order),) = scene.took(messages.Assign)
    assert (node, order.hot, order.placements) == (2, True, ())
    rehearse(scene)
    assert (scene.state.phase, scene.state.generation) == (Phase.RUN, 1)
    assert [note.fields["reason"] for note in scene.notes("drain_undone")] == ["asked for"]


def test_a_spare_that_cannot_get_hot_is_passed_over_and_without_another_one_nothing_moves() -> None:
    scene = training(spares=2)
    scene.drain("node1")
    rehearse(scene, ranks=(2,))
    ended = messages.RankExited(generation=1, rank=3, pid=7, exit_code=1, log_tail="ValueError: no such file", hot=True)
    scene.forget()
    scene.say(2, ended)
    assert [(node, len(order.placements)) for node, order in scene.took(messages.Assign)] == [(2, 0), (3, 2)]
    scene.lose(3)
    assert scene.state.roster.seats == ["node0", "node1"]
    (undone,) = scene.notes("drain_undone")
    assert "node2: rank 3 ended there with exit code 1: ValueError: no such file" in str(undone.fields["reason"])
    assert scene.state.phase is Phase.RUN


def test_a_spare_that_does_not_get_hot_in_time_is_not_waited_for() -> None:
    scene = training()
    scene.drain("node1")
    scene.wait(scene.config.join_timeout_s)
    assert scene.notes("not_hot")
    assert scene.notes("drain_undone")


def test_the_node_fails_meanwhile_and_the_stand_ins_are_its_joiners() -> None:
    scene = training()
    scene.drain("node1")
    rehearse(scene, ranks=(2,))
    scene.lose(1)
    assert [(node, order.hot) for node, order in scene.took(messages.Assign)] == [(2, True), (2, False)]
    scene.recover(step=4, survivors=[0, 1], joiners=[2, 3])
    scene.bring_up(4)
    assert (scene.state.phase, scene.state.recovery.hot, scene.state.recovery.swaps) == (Phase.RUN, {}, {})


def test_a_rank_of_the_node_fails_meanwhile_and_the_swap_takes_place_with_that() -> None:
    scene = training()
    scene.drain("node1")
    scene.killed(2)
    assert scene.state.roster.seats == ["node0", "node2"]
    assert scene.state.recovery.drained == {3: "node1"}
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.prepare(2, 3)
    for node in (0, 2):
        scene.report(node, *scene.vault(node, 4))
    leave(scene, 3, step=5)
    scene.bring_up(4)
    (record,) = scene.state.recovery.records
    assert (record.failure_class, record.ranks, record.moved) == ("transient", (2, 3), (2, 3))
    assert record.survivors_kept_processes


def test_another_node_fails_meanwhile_and_needs_the_spare() -> None:
    scene = training(nnodes=3, nproc_per_node=1)
    scene.drain("node1")
    scene.lose(0)
    assert scene.state.roster.seats == ["node3", "node1", "node2"]
    scene.recover(step=4, survivors=[1, 2], joiners=[0])
    scene.bring_up(4)
    assert [note.fields["node"] for note in scene.notes("drain_undone")] == ["node1"]
    assert scene.state.phase is Phase.RUN


def test_another_node_fails_meanwhile_and_the_other_spare_takes_its_seat() -> None:
    scene = training(nnodes=3, nproc_per_node=1, spares=2)
    scene.drain("node1")
    scene.lose(0)
    assert scene.state.roster.seats == ["node4", "node1", "node2"]
    rehearse(scene, 3, (1,))
    scene.recover(step=4, survivors=[1, 2], joiners=[0])
    scene.bring_up(4)
    assert scene.state.phase is Phase.RECOVER, "the spare got hot meanwhile: now the swap takes place"
    assert scene.state.roster.seats == ["node4", "node3", "node2"]


def test_a_hot_spare_takes_its_seat_in_the_recovery_that_another_node_causes() -> None:
    scene = training(nnodes=3, nproc_per_node=1, spares=2)
    scene.drain("node1")
    scene.drain("node0")
    scene.killed(2)
    rehearse(scene, 3, (1,))
    scene.killed(2)
    assert scene.state.roster.seats == ["node0", "node3", "node2"]
    assert scene.state.recovery.drained == {1: "node1"}
    assert scene.state.recovery.swaps.keys() == {"node0"}
