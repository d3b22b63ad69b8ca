"""Who gets a seat, which spare comes next, who holds whose replicas."""

from deadpool.proto.config import JobConfig
from deadpool.proto.messages import Hello
from deadpool.supervisor.model.membership import NodeRole, Roster, choose_members, choose_spare

CONFIG = JobConfig(job_id="j", nnodes=2, nproc_per_node=2, command=("s.py",), python="python", log_dir="logs")


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
    assert [placement.node_rank for placement in dict(roster.all_placements(CONFIG))["node2"]] == [1, 1]


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


def test_a_spare_that_has_a_seats_replicas_takes_it() -> None:
    roster = _roster()
    spares = [node.node_id for node in roster.spares()]
    assert choose_spare(roster.nodes, seat=0)[0] == spares[0]
    keeper = spares[1]
    assert choose_spare(roster.nodes, seat=0, keepers=(keeper,)) == (keeper, f"{keeper} has the replicas of this seat's ranks")
    assert choose_spare(roster.nodes, seat=0, keepers=(keeper,), hot={spares[0]: 0})[0] == spares[0], "hot comes first"


def test_a_spare_that_leaves_more_domains_that_may_be_lost_comes_before_one_that_has_the_replicas() -> None:
    roster = Roster.empty(nnodes=3, nproc_per_node=1)
    for index, rack in enumerate(("r1", "r1", "r2", "r1", "r2", "r3")):
        roster.add(Hello(node_id=f"n{index}", hint=index, host="h", port=1, pid=1, generation=0, domain=rack))
    for seat in range(3):
        roster.take_seat(seat, f"n{seat}")
    spreads = roster.spreads(1, CONFIG)
    assert spreads == {"n3": 0, "n4": 0, "n5": 1}
    chosen = choose_spare(roster.nodes, seat=1, keepers=("n4",), spreads=spreads)
    assert chosen == ("n5", "n5 is not of a domain that has too many nodes")
    assert roster.spreads(2, CONFIG) == {"n3": 0, "n4": 0, "n5": 0}
    assert choose_spare(roster.nodes, seat=2, keepers=("n4",), spreads=roster.spreads(2, CONFIG))[0] == "n4"


def test_what_the_topology_says_comes_before_what_an_agent_says() -> None:
    roster = Roster.empty(nnodes=2, nproc_per_node=1)
    said = [
        Hello(node_id=f"n{index}", hint=index, host=f"h{index}", port=1, pid=1, generation=0, domain="own") for index in range(3)
    ]
    domains = [roster.add(hello, topology={"n0": "r1", "h1": "r2"}).domain for hello in said]
    assert domains == ["r1", "r2", "own"]
