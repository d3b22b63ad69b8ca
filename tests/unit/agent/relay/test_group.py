"""What a relay passes on of its group's words, and when."""

from typing import Any

import pytest

from deadpool.agent.relay.group import RelayGroup, full_s
from deadpool.proto.messages import FromGroup, Heartbeat, RankExited, RankProgress, Said


def beat(step: int, *, generation: int = 1, **fields: Any) -> Heartbeat:
    fields = {"rank": 0, "pid": 7, "step": step, "commit_step": step, "steps_done": step, "exposed_stall_s": 0.0} | fields
    return Heartbeat(generation=generation, ranks=(RankProgress(**fields),))


def group_of(count: int, nodes: int = 0) -> tuple[RelayGroup, list[int]]:
    """Returns the group, whose members have said Hello and one heartbeat, and their numbers. `nodes`: of the job."""
    group = RelayGroup(full_s(nodes))
    members = [group.joined(b"hello") for _ in range(count)]
    for member in members:
        group.heard(member, beat(1), b"first", now_s=0.0)
    assert len(group.take(now_s=0.0).said) == 2 * count
    return group, members


def full(batch: FromGroup) -> dict[int, bytes]:
    return {each.member: each.message for each in batch.said}


def test_what_is_no_heartbeat_goes_on_immediately_and_in_order() -> None:
    group, (a, b) = group_of(2)
    assert not group.urgent
    group.heard(a, RankExited(generation=1, rank=0, pid=7, exit_code=1), b"exited", now_s=0.1)
    assert group.urgent
    group.left(b)
    batch = group.take(now_s=0.1)
    assert batch.said == (Said(member=a, message=b"exited"), Said(member=b, closed=True))
    assert not group.urgent
    group.heard(b, beat(2), b"late", now_s=0.2)
    assert group.take(now_s=1.0) == FromGroup()


def test_of_heartbeats_with_nothing_new_only_the_furthest_goes_on() -> None:
    group, (a, b, c) = group_of(3)
    for member, step, now_s in ((a, 4, 0.4), (b, 5, 0.5), (c, 3, 0.7)):
        group.heard(member, beat(step), str(step).encode(), now_s=now_s)
    assert not group.urgent
    batch = group.take(now_s=1.0)
    assert full(batch) == {b: b"5"}
    assert (batch.living, batch.ages_ms, batch.steps) == ((a, c), (600, 300), (4, 3))
    group.heard(c, beat(4), b"behind", now_s=0.72)
    batch = group.take(now_s=0.72)
    assert full(batch) == {}, "the supervisor knows of a step further on"
    assert batch.living == (c,), "the others have said nothing"


def test_what_has_changed_goes_on_in_full() -> None:
    group, (a, b) = group_of(2)
    for member, heartbeat in ((a, beat(2, stopped=True)), (b, beat(2, pid=8))):
        group.heard(member, heartbeat, b"new", now_s=0.5)
    assert full(group.take(now_s=1.0)) == {a: b"new", b: b"new"}
    group.heard(a, beat(0, generation=2), b"back", now_s=1.5)
    assert full(group.take(now_s=2.0)) == {a: b"back"}
    group.heard(b, beat(1, pid=8), b"furthest", now_s=2.5)
    assert full(group.take(now_s=3.0)) == {b: b"furthest"}, "what was known of the generation before is void"


@pytest.mark.parametrize(("nodes", "every_s"), [(2048, 15), (8100, 30), (16200, 60)])
def test_each_is_heard_in_full_now_and_then_and_not_all_at_the_same_time(nodes: int, every_s: int) -> None:
    group, members = group_of(16, nodes)
    seen: dict[int, list[float]] = {member: [] for member in members}
    at_once = 0
    for second in range(1, 2 * every_s + 1):
        for member in members:
            group.heard(member, beat(1), b"same", now_s=float(second))
        batch = group.take(now_s=float(second))
        at_once = max(at_once, len(batch.said))
        for member in full(batch):
            seen[member].append(float(second))
    assert all(1 <= len(times) <= 3 for times in seen.values())
    assert at_once <= 6


def test_a_stale_heartbeat_does_not_follow_a_newer_one_of_the_same_node() -> None:
    group, (a,) = group_of(1)
    group.heard(a, beat(5), b"furthest", now_s=0.3)
    group.heard(a, beat(6, stopped=True), b"newer", now_s=0.6)
    assert [each.message for each in group.take(now_s=1.0).said] == [b"newer"]
