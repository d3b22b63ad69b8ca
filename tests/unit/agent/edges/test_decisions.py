"""Which MPI pairs run, and what is said of them."""

from deadpool.agent.edges.decisions import SETTLE_S, Edges, EndPair, StartPair
from deadpool.proto.messages import EdgeChanged

MEET_S = 30.0


def opened(*holders: str) -> Edges:
    """Returns edges whose pairs have met at 2 s."""
    edges = Edges(MEET_S)
    edges.wanted(holders, 1, now_s=0.0)
    assert edges.tick(now_s=SETTLE_S) == [StartPair(holder=holder) for holder in holders]
    for holder in holders:
        assert edges.met(holder, (7, 8)) == [EdgeChanged(generation=1, holder=holder, pids=(7, 8))]
    assert edges.next_deadline_s() is None
    return edges


def test_a_pair_is_started_once_its_edge_is_wanted_for_a_moment() -> None:
    edges = Edges(MEET_S)
    assert edges.wanted(["b"], 1, now_s=10.0) == []
    assert edges.tick(now_s=10.0 + SETTLE_S / 2) == []
    assert edges.next_deadline_s() == 10.0 + SETTLE_S
    assert edges.tick(now_s=10.0 + SETTLE_S) == [StartPair(holder="b")]


def test_an_edge_that_stays_keeps_its_pair_and_another_one_ends() -> None:
    edges = opened("b", "c")
    assert edges.wanted(["c", "d"], 2, now_s=5.0) == [EndPair(holder="b")]
    assert edges.ended("b", "killed", now_s=5.1) == [], "nobody wants to know of an edge that is wanted no more"
    assert edges.tick(now_s=5.0 + SETTLE_S) == [StartPair(holder="d")]


def test_a_pair_of_an_edge_that_was_wanted_no_more_is_not_taken_for_the_next_one() -> None:
    edges = opened("b")
    edges.wanted([], 2, now_s=5.0)
    edges.wanted(["b"], 3, now_s=5.1)
    assert edges.ended("b", "killed", now_s=5.2) == []
    assert edges.tick(now_s=5.1 + SETTLE_S) == [StartPair(holder="b")]


def test_a_lost_edge_is_named_with_its_generation_and_gets_a_new_pair() -> None:
    edges = opened("b")
    edges.wanted(["b"], 4, now_s=5.0)
    assert edges.ended("b", "killed", now_s=6.0) == [EdgeChanged(generation=4, holder="b", lost="killed")]
    assert edges.tick(now_s=6.0 + SETTLE_S) == [StartPair(holder="b")]


def test_pauses_grow_while_no_pair_meets() -> None:
    edges, now_s, pauses = opened("b"), 10.0, []
    for _ in range(9):
        edges.ended("b", "no MPI", now_s=now_s)
        due_s = edges.next_deadline_s()
        assert due_s is not None
        pauses.append(due_s - now_s)
        now_s = due_s
        assert edges.tick(now_s=now_s) == [StartPair(holder="b")]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    edges.met("b", (1, 2))
    edges.ended("b", "killed", now_s=now_s)
    assert edges.next_deadline_s() == now_s + 1


def test_why_no_pair_meets_is_said_once_until_one_has_met() -> None:
    edges, said = opened("b"), []
    for at_s, reason in ((10.0, "killed"), (20.0, "no ssh: port 4711"), (40.0, "no ssh: port 4712")):
        said += [change.lost for change in edges.ended("b", reason, now_s=at_s) if isinstance(change, EdgeChanged)]
        edges.tick(now_s=at_s + 10)
    edges.met("b", (1, 2))
    for at_s in (60.0, 70.0):
        said += [change.lost for change in edges.ended("b", "again", now_s=at_s) if isinstance(change, EdgeChanged)]
        edges.tick(now_s=at_s + 10)
    assert said == ["killed", "no ssh: port 4711", "again", "again"]


def test_a_pair_that_does_not_meet_is_ended() -> None:
    edges = Edges(MEET_S)
    edges.wanted(["b"], 1, now_s=0.0)
    edges.tick(now_s=1.0)
    assert edges.tick(now_s=1.0 + MEET_S) == [EndPair(holder="b", reason="its processes have not met within 30 s")]
    assert edges.tick(now_s=2.0 + MEET_S) == [], "once"
    assert [change.lost for change in edges.ended("b", "so", now_s=33.0) if isinstance(change, EdgeChanged)] == ["so"]
