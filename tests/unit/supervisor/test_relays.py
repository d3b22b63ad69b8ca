"""Who speaks through whom."""

from deadpool.proto.messages import Route
from deadpool.supervisor.relays import Relays


def _routed(routes: list[tuple[str, Route]]) -> dict[str, Route]:
    return dict(routes)


def test_below_the_limit_everybody_speaks_for_itself() -> None:
    relays = Relays(above=3, group=2)
    assert [relays.joined(node) for node in "abc"] == [[], [], []]


def test_above_it_some_relay_for_the_others() -> None:
    relays = Relays(above=3, group=2)
    for node in "abc":
        relays.joined(node)
    asked = _routed(relays.joined("d"))
    assert asked == {"a": Route(relays=True)}, "the first one, and the last one may as well speak for itself"
    assert _routed(relays.opened("a", "A:1")) == {"b": Route(through="A:1"), "c": Route(through="A:1")}
    assert relays.joined("c", through="a") == []
    assert _routed(relays.joined("e")) == {"d": Route(relays=True)}
    assert _routed(relays.opened("d", "D:1")) == {"e": Route(through="D:1")}


def test_a_relay_is_never_sent_to_another_one() -> None:
    relays = Relays(above=0, group=8)
    assert relays.joined("a") == []
    assert _routed(relays.joined("b")) == {"a": Route(relays=True)}
    relays.opened("a", "A:1")
    relays.joined("b", through="a")
    relays.left("a")  # and it comes back, as a relay, before anybody else has become one
    assert relays.joined("a") == []
    assert relays.opened("a", "A:2") == []


def test_those_behind_a_relay_that_is_gone_find_another_one() -> None:
    relays = Relays(above=1, group=2)
    for node in "abcdef":
        relays.joined(node)  # c waits, and d
    for relay in "ab":
        for node, route in relays.opened(relay, f"{relay}:1"):
            assert route == Route(through=f"{relay}:1")
            relays.joined(node, through=relay)
    relays.left("a")
    found = [route for node in "cd" for route in relays.joined(node)]
    assert found == [("c", Route(relays=True))], "the other relay's group is full"


def test_an_agent_that_came_back_from_a_relay_is_not_sent_there_again() -> None:
    relays = Relays(above=1, group=4)
    for node in "abc":
        relays.joined(node)
    assert _routed(relays.opened("a", "A:1")) == {"b": Route(through="A:1"), "c": Route(through="A:1")}
    relays.joined("b", through="a")
    relays.joined("c", through="a")
    assert relays.joined("c") == [], "it speaks for itself from now on"
    assert _routed(relays.joined("d")) == {"d": Route(through="A:1")}, "the others go there all the same"


def test_a_supervisor_that_takes_over_learns_from_who_comes() -> None:
    relays = Relays(above=4, group=2)
    relays.joined("a")
    relays.opened("a", "A:1")
    for node in "bc":
        assert relays.joined(node, through="a") == []
    assert relays.joined("d") == []
    assert _routed(relays.joined("e")) == {"d": Route(relays=True)}, "the first relay's group is full"


def test_eight_thousand_agents_are_shared_out_without_searching_through_all() -> None:
    relays = Relays(above=1000)
    homes: dict[str, str] = {}
    pending = [(f"n{index}", "") for index in range(8192)]
    while pending:
        node, through = pending.pop()
        for other, route in relays.joined(node, through=through):
            if route.relays:
                pending += [(each, other) for each, its in relays.opened(other, other) if its.through]
                homes[other] = ""
            else:
                homes[other] = route.through
                pending.append((other, route.through))
    relayed = [home for home in homes.values() if home]
    assert len(set(relayed)) < 200
    assert max(relayed.count(home) for home in set(relayed)) <= 64
