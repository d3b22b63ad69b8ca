"""Where replicas are kept: what holds for any number of nodes, however they fail together."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deadpool.proto.config import Places
from deadpool.supervisor.model.placing import choose_holders, depth_of_domains, domain_of


def named(letter: str, count: int) -> list[str]:
    return [f"{letter}{index}" for index in range(count)]


def test_without_a_topology_holders_are_the_next_nodes_in_the_ring() -> None:
    assert choose_holders("ABC", spares="S", replicas=1) == {"A": ("B",), "B": ("C",), "C": ("A",)}
    assert choose_holders("ABC", spares="ST", replicas=4)["B"] == ("C", "A", "T", "S")


def test_spares_hold_replicas_when_there_is_no_other_member() -> None:
    assert choose_holders("A", spares="ST", replicas=1) == {"A": ("S",)}
    assert choose_holders("A", spares="", replicas=1) == {"A": ()}


def test_the_ring_goes_from_rack_to_rack() -> None:
    racks = {"A": "r1", "B": "r1", "C": "r2", "D": "r2"}
    assert choose_holders("ABCD", spares="", replicas=1, domains=racks) == {"A": ("C",), "B": ("D",), "C": ("A",), "D": ("B",)}
    assert choose_holders("ABCD", spares="", replicas=2, domains=racks)["A"] == ("C", "D")


def test_the_widest_domains_that_can_be_told_apart_are_used() -> None:
    pods = {"A": "p1/r1", "B": "p1/r2", "C": "p2/r1", "D": "p2/r2"}
    assert depth_of_domains("ABCD", pods) == 1
    one_pod = {"A": "p1/r1", "B": "p1/r1", "C": "p1/r2", "D": "p1/r2"}
    assert depth_of_domains("ABCD", one_pod) == 2
    assert depth_of_domains("ABCD", dict.fromkeys("ABCD", "s0")) == 0, "one switch for all: each node fails by itself"
    assert choose_holders("ABC", spares="", replicas=1, domains=dict.fromkeys("ABC", "s0")) == {
        "A": ("B",),
        "B": ("C",),
        "C": ("A",),
    }


def test_spares_keep_the_replicas_each_of_another_member() -> None:
    assert choose_holders("ABC", spares="ST", replicas=1, places=Places.SPARES) == {"A": ("S",), "B": ("T",), "C": ("S",)}
    assert choose_holders("ABC", spares="", replicas=1, places=Places.SPARES) == {"A": ("B",), "B": ("C",), "C": ("A",)}
    assert choose_holders("ABC", spares="S", replicas=2, places=Places.SPARES)["A"] == ("S", "B")
    assert choose_holders("AB", spares="ST", replicas=1, places=Places.BOTH) == {"A": ("B", "S"), "B": ("A", "T")}


@given(st.data(), st.integers(1, 9), st.integers(0, 3), st.integers(0, 3), st.sampled_from(Places))
def test_holders_are_distinct_other_nodes_and_as_many_as_there_can_be(
    data: st.DataObject, nnodes: int, nspares: int, replicas: int, places: Places
) -> None:
    members, spares = named("m", nnodes), named("s", nspares)
    paths = st.sampled_from(["", "a", "b", "c", "a/x", "a/y", "b/x"])
    domains = {node: data.draw(paths) for node in (*members, *spares)}
    for owner, holders in choose_holders(members, spares=spares, replicas=replicas, places=places, domains=domains).items():
        wanted = replicas + (places is Places.BOTH and replicas > 0 and nspares > 0)
        in_ring = min(replicas, nnodes - 1 + nspares)
        assert owner not in holders
        assert len(set(holders)) == len(holders)
        assert in_ring <= len(holders) <= min(wanted, nnodes - 1 + nspares)
        if places is Places.SPARES and not any(domains.values()):  # else another domain comes first
            assert len(set(holders) & set(spares)) == min(replicas, nspares)


@given(st.data(), st.integers(2, 12), st.integers(2, 5))
def test_a_holder_is_in_another_domain_and_no_node_keeps_more_than_any_other(
    data: st.DataObject, nnodes: int, racks: int
) -> None:
    members = named("m", nnodes)
    domains = {member: f"r{data.draw(st.integers(1, racks))}" for member in members}
    depth = depth_of_domains(members, domains)
    largest = max(Counter(domains.values()).values())
    assert (depth == 1) == (2 * largest <= nnodes)
    holders = choose_holders(members, spares=[], replicas=1, domains=domains)
    if depth:
        assert all(domain_of(owner, domains, depth) != domain_of(holder, domains, depth) for owner, (holder,) in holders.items())
        assert sorted(holder for (holder,) in holders.values()) == sorted(members)
    elif len(set(domains.values())) > 1:
        assert all(domains[owner] != domains[holder] for owner, (holder,) in holders.items())
