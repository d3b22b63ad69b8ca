"""Which injected failure is due when, and who carries it out."""

from typing import Any

import pytest
from driven_node import Node, reports

from deadpool.agent.events import (
    Command,
    HeadsRead,
    InjectHere,
    KillNode,
    KillProcess,
    Tell,
)
from deadpool.proto.call_record import Head
from deadpool.proto.messages import (
    NO_STEP,
    Inject,
    InjectFailure,
    InjectionAck,
    InjectionDue,
)


@pytest.mark.parametrize(
    ("kind", "target", "step", "head", "due"),
    [
        ("kill-rank", 1, 5, {"step": 4, "step_began_ns": 1000, "commit_step": 4}, False),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2002, "commit_step": 5}, False),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 5}, True),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 4}, False),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1999, "commit_step": 5}, True),  # no step was timed yet
        ("kill-rank", 1, 5, {"step": 7, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 7}, True),  # it is past
        ("kill-rank", 1, 5, {"step": 16, "step_began_ns": 1999, "typical_step_ns": 2000}, True),  # nothing is committed
        ("kill-rank", 1, 0, {}, False),  # not joined yet
        ("kill-node", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 5}, True),
        ("kill-node", 0, 5, {"step": 9, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 9}, False),  # another
        ("kill-node", 1, NO_STEP, {}, True),
    ],
)
def test_an_injection_is_due_in_the_middle_of_its_step(
    kind: str, target: int, step: int, head: dict[str, Any], due: bool
) -> None:
    node = Node()
    node.run(node.start(0, 1))
    inject = Inject(injection_id=4, kind=kind, target=target, step=step)
    for _ in range(2):  # they are sent again with every recovery
        assert node.order(inject) == []
    heads = {0: Head(**head) if kind == "kill-node" else Head(), 1: Head(**head)}
    commands = node.event(HeadsRead(heads=heads, now_ns=2000))
    assert reports(commands) == ([InjectionDue(injection_id=4, at_ns=2000)] if due else [])
    assert node.order(InjectionAck(injection_id=4)) == (
        [] if not due else [KillNode()] if kind == "kill-node" else [KillProcess(process=1)]
    )
    assert node.order(InjectionAck(injection_id=4)) == []


@pytest.mark.parametrize(
    ("kind", "target", "commands"),
    [
        ("kill-agent", 1, [InjectHere(kind="kill-agent", target=1, process=None)]),
        ("freeze-node", 1, [InjectHere(kind="freeze-node", target=1, process=None)]),
        ("freeze-rank", 1, [InjectHere(kind="freeze-rank", target=1, process=1)]),
        ("corrupt-snapshot", 0, [InjectHere(kind="corrupt-snapshot", target=0, process=0)]),
        ("raise-rank", 1, [Tell(process=1, order=InjectFailure(kind="raise-rank"))]),
        ("partition-node", 1, []),  # the launcher's
        ("kill-supervisor", 0, []),
    ],
)
def test_who_carries_out_each_kind(kind: str, target: int, commands: list[Command]) -> None:
    node = Node()
    node.run(node.start(0, 1))
    node.order(Inject(injection_id=4, kind=kind, target=target, step=NO_STEP))
    assert reports(node.event(HeadsRead(heads={0: Head(), 1: Head()}, now_ns=2000))) == [InjectionDue(injection_id=4, at_ns=2000)]
    assert node.order(InjectionAck(injection_id=4)) == commands


@pytest.mark.parametrize(
    ("injections", "holds"),
    [
        ([("kill-rank", 1, 5)], {1: 5}),
        ([("kill-node", 1, 5)], {0: 5, 1: 5}),
        ([("kill-node", 1, 5), ("raise-rank", 0, 3), ("freeze-rank", 1, 8)], {0: 3, 1: 5}),
        ([("kill-rank", 1, NO_STEP), ("kill-rank", 2, 5), ("kill-node", 0, 5)], {}),  # for now; of another node
        ([("kill-supervisor", 0, 5), ("partition-node", 1, 5), ("corrupt-replica", 1, 5)], {}),  # others carry them out
    ],
)
def test_which_step_is_held_for_an_injection(injections: list[tuple[str, int, int]], holds: dict[int, int]) -> None:
    node = Node()
    node.run(node.start(0, 1))
    for number, (kind, target, step) in enumerate(injections):
        node.order(Inject(injection_id=number, kind=kind, target=target, step=step))
    assert node.core.injections.holds(node.core.ranks()) == holds


def test_a_step_is_held_until_the_injection_is_carried_out() -> None:
    node = Node()
    node.run(node.start(0, 1))
    node.order(Inject(injection_id=4, kind="freeze-rank", target=1, step=5))
    node.event(HeadsRead(heads={0: Head(), 1: Head(step=5, step_began_ns=1, commit_step=5)}, now_ns=2000))
    assert node.core.injections.holds(node.core.ranks()) == {1: 5}
    node.order(InjectionAck(injection_id=4))
    assert node.core.injections.holds(node.core.ranks()) == {}


def test_a_replica_is_corrupted_where_it_is() -> None:
    """Its rank's node says when, the holder carries it out."""
    node = Node()
    node.run(node.start(0, 1))
    node.order(Inject(injection_id=4, kind="corrupt-replica", target=2, step=5))
    assert node.event(HeadsRead(heads={0: Head(step=9, step_began_ns=1), 1: Head()}, now_ns=2000)) == []
    assert node.order(InjectionAck(injection_id=4)) == [InjectHere(kind="corrupt-replica", target=2, process=None)]
    assert not node.core.injections


@pytest.mark.parametrize("kind", ["thaw-node", "heal-node", "kill-spare"])
def test_what_no_agent_can_watch_for_is_not_noted(kind: str) -> None:
    node = Node()
    node.run(node.start(0, 1))
    node.order(Inject(injection_id=4, kind=kind, target=1, step=NO_STEP))
    assert not node.core.injections


def test_now_does_not_wait_for_a_rank_that_may_come() -> None:
    node = Node()
    node.order(Inject(injection_id=1, kind="kill-rank", target=0, step=NO_STEP))
    assert not node.core.injections
    node.order(Inject(injection_id=2, kind="kill-rank", target=0, step=3))
    assert node.core.injections
