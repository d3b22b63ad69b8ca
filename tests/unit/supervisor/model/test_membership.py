"""Who gets a seat, which spare comes next, who holds whose replicas."""

from hypothesis import given
from hypothesis import strategies as st

from deadpool.proto.messages import Hello
from deadpool.supervisor.model.membership import NodeRole, Roster, choose_holders, choose_members, choose_spare


def _roster(nnodes: int = 2, nproc: int = 2, nodes: int = 3) -> Roster:
    roster = Roster.empty(nnodes=nnodes, nproc_per_node=nproc)
    for index in range(nodes):
        roster.add(_hello(index))
    return roster


def _hello(index: int, name: str = "") -> Hello:
    return Hello(node_id=name or f"node{index}", hint=index, host="h", port=1, pid=1, generation=0)


def test_members_are_the_nodes_with_the_lowest_index() -> None:
    roster = Roster.empty(nnodes=2, nproc_per_node=1)
    for index in (2, 1, 0):
        roster.add(_hello(index))
    assert choose_members(roster.live(), 2) == ["node0", "node1"]


def test_nodes_without_an_index_come_first_to_serve() -> None:
    roster = Roster.empty(nnodes=2, nproc_per_node=1)
    assert [roster.add(_hello(-1, name)).index for name in ("x", "y")] == [0, 1]
    assert roster.add(_hello(1, "z")).index == 2


def test_a_node_that_comes_back_keeps_its_index() -> None:
    roster = _roster()
    roster.vacate("node1", NodeRole.LOST)
    assert roster.add(_hello(-1, "node1")).index == 1


def test_spare_with_the_lowest_index_comes_first() -> None:
    roster = _roster(nodes=4)
    roster.take_seat(0, "node0")
    roster.take_seat(1, "node1")
    assert choose_spare(roster.nodes) == ("node2", "node2 is the first of 2 spares")
    roster.nodes["node2"].role = NodeRole.FAULTY
    roster.nodes["node3"].role = NodeRole.LOST
    assert choose_spare(roster.nodes) == (None, "no spare is left (2 member, 1 faulty, 1 lost)")


def test_a_seat_moves_with_its_ranks() -> None:
    roster = _roster()
    roster.take_seat(0, "node0")
    roster.take_seat(1, "node1")
    assert roster.vacate("node1", NodeRole.LOST) == (2, 3)
    assert roster.vacancies() == [1]
    roster.take_seat(1, "node2")
    assert [rank.node_id for rank in roster.ranks] == ["node0", "node0", "node2", "node2"]
    assert [placement.node_rank for placement in roster.placements("node2", 1)] == [1, 1]


def test_a_replaced_process_is_not_heard_any_more() -> None:
    roster = _roster()
    roster.take_seat(0, "node0")
    rank = roster.ranks[0]
    roster.give_process(rank, generation=1, now_s=0.0, joining=False)
    rank.pid = 10
    assert roster.plays("node0", 0, 1, 10)
    roster.give_process(rank, generation=3, now_s=0.0, joining=True)
    assert not roster.plays("node0", 0, 2)
    assert not roster.plays("node0", 0, 3, 10)
    assert not roster.plays("node1", 0, 3, 11)
    assert not roster.plays("node0", 99, 3, 11)
    assert roster.plays("node0", 0, 3, 11)


def test_holders_are_the_next_nodes_in_the_ring() -> None:
    homes = ["A", "A", "B", "B", "C", "C"]
    assert choose_holders(1, homes, members="ABC", spares="S", replicas=1) == ("B",)
    assert choose_holders(5, homes, members="ABC", spares="S", replicas=2) == ("A", "B")
    assert choose_holders(0, homes, members="ABC", spares="ST", replicas=4) == ("B", "C", "S", "T")


def test_spares_hold_replicas_when_there_is_no_other_member() -> None:
    assert choose_holders(0, ["A", "A"], members="A", spares="ST", replicas=1) == ("S",)
    assert choose_holders(0, ["A", "A"], members="A", spares="", replicas=1) == ()


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 3))
def test_holders_are_distinct_other_nodes_and_as_many_as_there_can_be(
    data: st.DataObject, nnodes: int, nproc: int, spares: int, replicas: int
) -> None:
    members = [f"m{index}" for index in range(nnodes)]
    extra = [f"s{index}" for index in range(spares)]
    homes = [member for member in members for _ in range(nproc)]
    rank = data.draw(st.integers(0, len(homes) - 1))
    holders = choose_holders(rank, homes, members=members, spares=extra, replicas=replicas)
    assert homes[rank] not in holders
    assert len(set(holders)) == len(holders) == min(replicas, nnodes - 1 + spares)
    used_spares = [holder for holder in holders if holder in extra]
    assert not used_spares or len(holders) - len(used_spares) == nnodes - 1
