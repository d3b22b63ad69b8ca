"""Failures that somebody asked for: which can be, when their time begins, and that none is lost with a generation."""

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP


def test_injected_failure_is_timed_from_its_moment() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    assert scene.inject("kill-rank", 3, 7) == ""
    assert {node for node, _ in scene.took(messages.Inject)} == {0, 1, 2}
    scene.now_s = 200.0
    scene.say(1, messages.InjectionDue(injection_id=0, at_ns=int(199.9 * 1e9)))
    assert scene.took(messages.InjectionAck) == [(1, messages.InjectionAck(injection_id=0))]
    scene.say(1, messages.InjectionDue(injection_id=0, at_ns=int(199.9 * 1e9)))
    assert len(scene.took(messages.InjectionAck)) == 1
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert record.phases_s.detect == pytest.approx(0.1)
    assert record.total_s == pytest.approx(0.1)
    scene.forget()
    scene.lose(0)
    assert not scene.took(messages.Inject)


def test_injections_that_are_not_spent_go_along_with_each_generation() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.inject("kill-rank", 3, 70)
    scene.forget()
    scene.killed(0)
    assert {node for node, _ in scene.took(messages.Inject)} == {0, 1, 2}
    scene.forget()
    scene.hello(7)
    assert [node for node, _ in scene.took(messages.Inject)] == [7]


@pytest.mark.parametrize(
    ("kind", "target", "error"),
    [
        ("kill-rank", 4, "there is no rank 4: ranks are 0 to 3"),
        ("kill-node", 9, "there is no live node 9: live ones are 0, 1, 2"),
        ("set-fire", 0, "unknown kind 'set-fire'"),
    ],
)
def test_injection_of_a_target_that_does_not_exist_is_refused(kind: str, target: int, error: str) -> None:
    scene = Scene()
    scene.start(commit_step=NO_STEP)
    scene.forget()
    assert scene.inject(kind, target).startswith(error)
    assert not scene.took(messages.Inject)
