"""Stand-ins that have run a script up to its loop before they have a rank, and what becomes of them."""

from dataclasses import replace

import pytest
from driven_node import CONFIG, Node, reports, to_ranks

from deadpool.agent.events import (
    DropUnusedSlots,
    KillProcess,
    NameProcess,
    RankSpoke,
    StartProcess,
    Tell,
)
from deadpool.proto import messages
from deadpool.proto.config import to_json
from deadpool.proto.messages import (
    NO_STEP,
    Inject,
    Quiesce,
    RankExited,
    RankPrepared,
    Role,
    WarmUp,
    Welcome,
)


def hot_node() -> Node:
    """A spare with two stand-ins, 0 and 1, which get hot for both ranks in generation 1."""
    node = Node()
    node.run(node.order(WarmUp(standins=2)))
    assert [(process, isinstance(order, Role)) for process, order in to_ranks(node.get_hot(0, 1))] == [(0, True), (1, True)]
    return node


def test_a_hot_stand_in_is_no_rank_of_its_node() -> None:
    node = hot_node()
    assert (node.core.ranks(), node.core.playing()) == ({}, {})
    prepared = messages.RankPrepared(generation=1, rank=0, live_generation=0, live_step=NO_STEP, commit_step=NO_STEP)
    assert reports(node.event(RankSpoke(process=0, message=prepared))) == [replace(prepared, hot=True)]
    assert not to_ranks(node.order(messages.WriteCheckpoint(generation=1)))
    assert not to_ranks(node.order(messages.Release(generation=1, step=9)))
    node.order(Inject(injection_id=1, kind="kill-rank", target=0, step=NO_STEP))
    assert not node.core.injections
    assert [order for _, order in to_ranks(node.order(Quiesce(generation=2, reason="a rank of another node")))] == [
        Quiesce(generation=2, reason="a rank of another node")
    ] * 2


def test_hot_stand_ins_become_the_ranks_and_their_logs_are_the_ranks_from_then_on() -> None:
    node = hot_node()
    node.order(Quiesce(generation=2, reason="node1 is lost"))
    commands = node.assign(0, 1, generation=2)
    assert not [each for each in commands if isinstance(each, StartProcess | Tell)]
    assert [(each.process, each.rank, each.generation) for each in commands if isinstance(each, NameProcess)] == [
        (0, 0, 2), (1, 1, 2),
    ]  # fmt: skip
    assert [(each.rank, each.pid) for each in reports(commands) if isinstance(each, messages.RankJoined)] == [
        (0, 1000),
        (1, 1001),
    ]
    assert node.core.playing().keys() == {0, 1}


def test_one_that_has_ended_by_then_is_replaced_and_its_end_is_none_of_the_rank() -> None:
    node = hot_node()
    node.order(Quiesce(generation=2, reason="node1 is lost"))
    ended = node.exit(0)
    assert DropUnusedSlots() in ended
    (exited,) = reports(ended)
    assert isinstance(exited, RankExited)
    assert exited.hot
    assert exited.generation == 1, "of the order that made it hot: nobody takes it for an end of the rank's process"
    commands = node.assign(0, 1, generation=2)
    assert len([each for each in commands if isinstance(each, StartProcess)]) == 1
    assert node.core.ranks().keys() == {0, 1}


def test_one_that_dies_as_the_rank_before_it_has_registered_is_the_ranks_end() -> None:
    """Said in the generation that made it hot it was nobody's, and the recovery waited for the rank."""
    node = Node()
    started = node.run(node.get_hot(0), register=False)
    node.order(Quiesce(generation=2, reason="node1 is lost"))
    node.assign(0, generation=2)
    node.order(Quiesce(generation=3, reason="node2 is lost"))
    (exited,) = reports(node.exit(*started))
    assert isinstance(exited, RankExited)
    assert (exited.rank, exited.generation, exited.hot) == (0, 2, False)


@pytest.mark.parametrize("hot", [True, False])
def test_for_other_ranks_they_end_without_a_word(hot: bool) -> None:
    node = hot_node()
    commands = node.get_hot(generation=1) if hot else node.assign(2, 3, generation=2)
    assert [each.process for each in commands if isinstance(each, KillProcess)] == [0, 1]
    assert commands[-1] == DropUnusedSlots()
    assert not [each for each in reports([*node.exit(0), *node.exit(1)]) if isinstance(each, RankExited)]


def hot_member() -> Node:
    """A member, whose ranks 0 and 1 are processes 0 and 1; 2 and 3 wait, 2 is hot for rank 0."""
    node = Node()
    node.run(node.start(0, 1))
    node.run(node.order(WarmUp(standins=2)))
    assert [(process, order.hot) for process, order in to_ranks(node.get_hot(0)) if isinstance(order, Role)] == [(2, True)]
    return node


def prepared(generation: int) -> RankPrepared:
    return RankPrepared(generation=generation, rank=0, live_generation=0, live_step=NO_STEP, commit_step=NO_STEP)


def test_a_member_has_a_rank_and_its_hot_stand_in() -> None:
    node = hot_member()
    assert {rank: each.number for rank, each in node.core.ranks().items()} == {0: 0, 1: 1}
    joined = messages.RankJoined(generation=1, rank=0, pid=1002)
    assert reports(node.event(RankSpoke(process=2, message=joined))) == [replace(joined, hot=True)]
    assert not node.event(RankSpoke(process=2, message=messages.RankRaised(generation=1, rank=0, error="it is not the rank")))
    assert reports(node.event(RankSpoke(process=2, message=prepared(1)))) == [replace(prepared(1), hot=True)]
    assert reports(node.get_hot(0)) == [replace(prepared(1), hot=True)], "asked again"
    assert [process for process, _ in to_ranks(node.order(Quiesce(generation=2, reason="")))] == [0, 1, 2]


@pytest.mark.parametrize("early", [True, False], ids=["it answers before it has the rank", "after"])
def test_the_rank_is_lost_and_its_hot_stand_in_is_the_joiner(early: bool) -> None:
    node = hot_member()
    node.event(RankSpoke(process=2, message=prepared(1)))
    node.exit(0)
    node.order(Quiesce(generation=2, reason="rank 0 is lost"))
    if early:
        node.event(RankSpoke(process=2, message=prepared(2)))
    commands = node.assign(0, generation=2)
    assert [(each.process, each.rank) for each in commands if isinstance(each, NameProcess)] == [(2, 0)]
    assert messages.RankJoined(generation=2, rank=0, pid=1002) in reports(commands)
    if not early:
        commands = node.event(RankSpoke(process=2, message=prepared(2)))
    assert prepared(2) in reports([*commands, *node.soon()])
    assert {rank: each.number for rank, each in node.core.ranks().items()} == {0: 2, 1: 1}


def test_another_rank_of_the_node_is_lost_and_the_hot_stand_in_waits_on() -> None:
    node = hot_member()
    node.exit(1)
    node.order(Quiesce(generation=2, reason="rank 1 is lost"))
    commands = node.assign(1, generation=2)
    assert not [each for each in commands if isinstance(each, KillProcess)]
    assert [(each.process, each.rank) for each in commands if isinstance(each, NameProcess)] == [(3, 1)]
    assert node.core.hot_standins().keys() == {0}


@pytest.mark.parametrize("hot", [True, False], ids=["hot for others", "those of a node that is lost"])
def test_where_the_script_is_a_function_the_same_processes_begin_again_as_other_ranks(hot: bool) -> None:
    node = hot_node()
    for rank in (0, 1):
        node.event(RankSpoke(process=rank, message=replace(prepared(1), rank=rank, repeatable=True)))
    commands = node.get_hot(2, 3) if hot else node.assign(2, 3, generation=2)
    assert not [each for each in commands if isinstance(each, KillProcess | StartProcess)]
    assert commands[-1] == DropUnusedSlots()
    assert [(process, order.rank, order.hot) for process, order in to_ranks(commands) if isinstance(order, Role)] == [
        (0, 2, hot), (1, 3, hot),
    ]  # fmt: skip
    assert not node.event(RankSpoke(process=0, message=prepared(2))), "it was said as the rank before"
    again = replace(prepared(2), rank=2)
    said = [*node.event(RankSpoke(process=0, message=again)), *node.soon()]
    assert reports(said) == ([replace(again, hot=True)] if hot else [again])


def test_a_supervisor_that_begins_anew_with_this_node_knows_of_none() -> None:
    node = hot_node()
    again = Welcome(config_json=to_json(CONFIG), generation=1, resumed=True)
    assert not node.order(again)
    killed = node.order(replace(again, resumed=False))
    assert [each.process for each in killed if isinstance(each, KillProcess)] == [0, 1]


def test_they_count_as_stand_ins_until_they_have_the_rank() -> None:
    node = hot_node()
    assert not [each for each in node.order(WarmUp(standins=2)) if isinstance(each, StartProcess)]
    assert len([each for each in node.order(WarmUp(standins=4)) if isinstance(each, StartProcess)]) == 2
