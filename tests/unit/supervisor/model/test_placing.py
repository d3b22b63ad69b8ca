"""Where replicas are kept: what holds for any number of nodes, however they fail together."""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from deadpool.proto.config import Places
from deadpool.supervisor.model.placing import Placing, place_replicas


def holders(
    members: str, *, spares: str = "", replicas: int = 1, places: Places = Places.RING, domains: Mapping[str, str] | None = None
) -> list[str]:
    placing = place_replicas(members, spares=spares, replicas=replicas, places=places, domains=domains)
    return ["".join(placing.holders[member]) for member in members]


def test_without_a_topology_holders_are_the_next_nodes_in_the_ring() -> None:
    assert holders("ABC", spares="S") == ["B", "C", "A"]
    assert holders("ABC", spares="ST", replicas=4) == ["BCST", "CATS", "ABST"]
    assert place_replicas("ABC", spares="S", replicas=1).domains == {}


def test_spares_hold_replicas_when_there_is_no_other_member() -> None:
    assert holders("A", spares="ST") == ["S"]
    assert holders("A", spares="") == [""]


def test_the_ring_goes_from_rack_to_rack() -> None:
    racks = {"A": "r1", "B": "r1", "C": "r2", "D": "r2"}
    assert holders("ABCD", domains=racks) == ["C", "D", "A", "B"]
    assert holders("ACBD", domains=racks) == ["C", "A", "D", "B"], "whatever the seats"
    assert holders("ABCD", replicas=3, domains=racks) == ["CDB", "DAC", "ABD", "BCA"]
    three = {each: f"r{number // 2}" for number, each in enumerate("ABCDEF")}
    assert holders("ABCDEF", replicas=2, domains=three) == ["CE", "DF", "EA", "FB", "AC", "BD"]


def test_the_widest_domains_that_can_be_told_apart_are_used() -> None:
    pods = {"A": "p1/r1", "B": "p1/r2", "C": "p2/r1", "D": "p2/r2"}
    placing = place_replicas("ABCD", spares="", replicas=1, domains=pods)
    assert (placing.spread, placing.domains) == (1, {"A": "p1", "B": "p1", "C": "p2", "D": "p2"})
    one_pod = {"A": "p1/r1", "B": "p1/r1", "C": "p1/r2", "D": "p1/r2"}
    assert place_replicas("ABCD", spares="", replicas=1, domains=one_pod).domains == one_pod
    assert holders("ABC", domains=dict.fromkeys("ABC", "s0")) == ["B", "C", "A"], "one switch for all: each node by itself"


def test_where_one_rack_has_most_nodes_no_node_keeps_more_for_that() -> None:
    racks = dict.fromkeys("ABCDE", "r1") | {"F": "r2"}
    placing = place_replicas("ABCDEF", spares="", replicas=1, domains=racks)
    assert (placing.spread, placing.domains) == (0, {}), "its loss takes owners and holders"
    assert holders("ABCDEF", domains=racks) == ["F", "A", "B", "C", "D", "E"]


def test_spares_keep_the_replicas_each_of_another_member() -> None:
    assert holders("ABC", spares="ST", places=Places.SPARES) == ["S", "T", "S"]
    assert holders("ABC", spares="", places=Places.SPARES) == ["B", "C", "A"]
    assert holders("ABC", spares="S", replicas=2, places=Places.SPARES) == ["SB", "SC", "SA"]
    assert holders("AB", spares="ST", places=Places.BOTH) == ["BS", "AT"]
    assert holders("AB", spares="S", places=Places.BOTH, replicas=0) == ["", ""]


def test_a_spare_of_the_same_rack_does_not_keep_what_would_be_lost_with_it() -> None:
    racks = {"A": "r1", "B": "r1", "C": "r2", "D": "r2", "S": "r1", "T": "r2", "U": "r2"}
    assert holders("ABCD", spares="STU", domains=racks, places=Places.SPARES) == ["T", "U", "S", "S"]
    assert holders("ABCD", spares="S", domains=racks, places=Places.SPARES) == ["C", "D", "S", "S"]
    assert holders("ABCD", spares="S", domains=racks, places=Places.BOTH) == ["CS", "DS", "AS", "BS"]


@st.composite
def placings(draw: st.DrawFn) -> tuple[Placing, list[str], list[str], int, Places, dict[str, str]]:
    """Yields what was decided, with the members, the spares, how many replicas, where, and each node's domain."""
    members = [f"m{index}" for index in range(draw(st.integers(1, 9)))]
    spares = [f"s{index}" for index in range(draw(st.integers(0, 3)))]
    replicas, places = draw(st.integers(0, 4)), draw(st.sampled_from(Places))
    paths = draw(st.sampled_from([[""], ["", "a", "b", "c", "d"], ["a", "b"], ["", "a/x", "a/y", "b/x", "b/y", "c"]]))
    domains = {node: draw(st.sampled_from(paths)) for node in (*members, *spares)}
    return (
        place_replicas(members, spares=spares, replicas=replicas, places=places, domains=domains),
        members,
        spares,
        replicas,
        places,
        domains,
    )


@given(placings())
def test_holders_are_distinct_other_nodes_as_many_for_each_as_there_can_be(
    drawn: tuple[Placing, list[str], list[str], int, Places, dict[str, str]],
) -> None:
    placing, members, spares, replicas, places, _ = drawn
    most = len(members) - 1 + len(spares)
    one_more = places is Places.BOTH and replicas > 0 and replicas < most and len(spares) > max(0, replicas - len(members) + 1)
    for owner, chosen in placing.holders.items():
        assert owner not in chosen
        assert len(set(chosen)) == len(chosen) == min(replicas, most) + one_more
        if places is Places.SPARES and not placing.domains:
            assert len(set(chosen) & set(spares)) == min(replicas, len(spares))


@given(placings())
def test_no_loss_of_as_many_whole_domains_takes_an_owner_and_all_its_holders(
    drawn: tuple[Placing, list[str], list[str], int, Places, dict[str, str]],
) -> None:
    placing, members, spares, replicas, _, domains = drawn
    of = placing.domains or {node: f"/{node}" for node in (*members, *spares)}
    assert all(f"{domains[node]}/".startswith(f"{name}/") or name == f"/{node}" for node, name in of.items())
    for lost in combinations(set(of.values()), min(replicas, placing.spread)):
        for owner, chosen in placing.holders.items():
            assert any(of[node] not in lost for node in (owner, *chosen)), (owner, chosen, lost)


@given(st.data(), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_in_the_ring_no_node_keeps_more_than_any_other(data: st.DataObject, nnodes: int, racks: int, replicas: int) -> None:
    members = [f"m{index}" for index in range(nnodes)]
    domains = {member: f"r{data.draw(st.integers(1, racks))}" for member in members}
    kept = Counter(
        holder
        for chosen in place_replicas(members, spares=[], replicas=replicas, domains=domains).holders.values()
        for holder in chosen
    )
    assert set(kept.values()) <= {min(replicas, nnodes - 1)}
    largest = max(Counter(domains.values()).values())
    placing = place_replicas(members, spares=[], replicas=replicas, domains=domains)
    assert placing.spread == nnodes - 1 if len(set(domains.values())) == 1 else placing.spread == nnodes // largest - 1
