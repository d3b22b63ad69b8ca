"""A job's life around its recoveries: assembly, nodes that come back, and what comes too late."""

import itertools

import pytest
from supervising import Scene

from deadpool.proto import messages
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
    messages.RanksSaid(resumed=(messages.RankResumed(generation=1, rank=0, step=99, at_ns=0),)),
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
