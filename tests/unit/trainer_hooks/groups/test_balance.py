"""A group stays open only if nothing of it is unmatched: whatever its members had begun when the break came to each of them."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from deadpool.trainer_hooks.groups.balance import Balance, stays_open
from deadpool.trainer_hooks.groups.ledger import Ledger

Rule = Callable[[list[Balance | None]], bool]


@dataclass(frozen=True)
class Call:
    """Of all members, or a message of which two know. `waits_for[place]`: who must have begun it before it ends at that place."""

    what: str
    waits_for: dict[int, set[int]]

    @property
    def members(self) -> set[int]:
        return set(self.waits_for)


def of_all(size: int) -> list[Call]:
    """As eager as collectives can be: a root that sends, and all that send to a root, wait for nobody."""
    places = set(range(size))
    return [
        Call("all", dict.fromkeys(places, places)),
        Call("from 0", {place: {0, place} for place in places}),
        Call("to 1", {place: places if place == 1 else {place} for place in places}),
    ]


def messages(size: int) -> list[Call]:
    return [Call(f"{a} to {b}", {a: {a}, b: {a, b}}) for a, b in ((0, 1), (1, 0), (size - 1, 0)) if a != b]


def programs(size: int) -> Iterator[tuple[Call, ...]]:
    calls = of_all(size) + messages(size)
    for length in range(1, 4 if size < 4 else 3):
        yield from itertools.product(calls, repeat=length)


def moments(program: tuple[Call, ...], size: int) -> Iterator[list[list[Call]]]:
    """Yields what each member has begun when it stops: any part of the program, independently of the others.

    That is more than all interleavings of threads that wait for each call and of those that wait for none.
    """
    own = [[call for call in program if place in call.members] for place in range(size)]
    for counts in itertools.product(*(range(len(each) + 1) for each in own)):
        yield [each[:count] for each, count in zip(own, counts, strict=True)]


def occurrence(begun: list[Call], index: int) -> int:
    """Returns the how-manieth of its kind a call is: calls of one kind are matched in their order."""
    return sum(call == begun[index] for call in begun[:index])


def balances(begun: list[list[Call]]) -> list[Balance | None]:
    """Returns what the members say once every call has ended that can end."""

    def has_begun(place: int, call: Call, number: int) -> bool:
        return begun[place].count(call) > number

    found = []
    for place, calls in enumerate(begun):
        ledger = Ledger()
        for index, call in enumerate(calls):
            ledger.begin()
            if " to " in call.what and call.what[0].isdigit():
                sender, receiver = (int(word) for word in call.what.split(" to "))
                if place == sender:
                    ledger.sends(receiver)
                else:
                    ledger.receives(sender)
            if all(has_begun(other, call, occurrence(calls, index)) for other in call.waits_for[place]):
                ledger.end()
        sequence = sum(len(call.members) == len(begun) and call.what in ("all", "from 0", "to 1") for call in calls)
        found.append(ledger.balance("g1/pair", sequence))
    return found


def is_matched(begun: list[list[Call]]) -> bool:
    """Returns whether every call has been begun by all its members or by none."""
    calls = {call.what: call for each in begun for call in each}.values()
    return all(len({begun[place].count(call) for place in call.members}) == 1 for call in calls)


def mistakes(rule: Rule, size: int) -> list[tuple[list[list[str]], bool]]:
    """Returns the moments at which the rule is wrong, and what it has decided."""
    return [
        ([[call.what for call in each] for each in begun], decided)
        for program in programs(size)
        for begun in moments(program, size)
        if (decided := rule(balances(begun))) != is_matched(begun)
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_it_stays_open_exactly_if_nothing_is_unmatched(size: int) -> None:
    assert mistakes(stays_open, size)[:5] == []


def without(**left_out: object) -> Rule:
    def rule(said: list[Balance | None]) -> bool:
        return stays_open([each and replace(each, **left_out) for each in said])  # type: ignore[arg-type]

    return rule


@pytest.mark.parametrize(
    "rule",
    [
        without(sent={}, received={}),
        without(collectives=0, sequence=0),
        lambda said: None not in said,
        lambda said: stays_open([each for each in said if each is not None]),
    ],
    ids=["no messages", "no collectives", "none under way", "whoever has one"],
)
def test_a_rule_that_looks_at_less_leaves_something_in_it(rule: Rule) -> None:
    assert any(decided for _, decided in mistakes(rule, 2))


def test_who_has_opened_it_at_another_time_holds_other_connections() -> None:
    first, second = Ledger(), Ledger()
    assert stays_open([first.balance("g1/0-1#0", 0), second.balance("g1/0-1#0", 0)])
    assert not stays_open([first.balance("g1/0-1#0", 0), second.balance("g2/0-1#0", 0)])
    assert not stays_open([first.balance("g1/0-1#0", 0), second.balance("g1/0-1#1", 0)])


def test_calls_that_bypass_the_ledger_show_in_torchs_own_count() -> None:
    assert not stays_open([Ledger().balance("g1/0-1#0", 1), Ledger().balance("g1/0-1#0", 0)])


def test_a_failed_call_is_never_forgotten() -> None:
    ledger = Ledger()
    ledger.begin()
    ledger.failed = True
    ledger.end()
    assert ledger.balance("g1/0-1#0", 0) is None


def test_a_message_from_anybody_counts_for_who_has_sent_it() -> None:
    sender, receiver = Ledger(), Ledger()
    sender.begin()
    sender.sends(1)
    sender.end()
    receiver.begin()
    receiver.receives(None)
    assert receiver.balance("g1/0-1#0", 0) is None
    receiver.received(0)
    receiver.end()
    assert stays_open([sender.balance("g1/0-1#0", 0), receiver.balance("g1/0-1#0", 0)])


def test_what_is_said_survives_the_way() -> None:
    balance = Balance(opened="g1/0-1#0", collectives=3, sequence=4, sent={1: 2}, received={0: 1})
    assert Balance.from_dict(json.loads(json.dumps(balance.to_dict()))) == balance
    assert Balance.from_dict(None) is None


def test_looking_at_a_ledger_changes_nothing() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.begin()
        ledger.end()
        assert ledger.is_idle
    said = ledger.balance("g1/0-1#0", 3)
    assert said is not None
    assert said.collectives == 3
    assert ledger.balance("g1/0-1#0", 3) == said


def test_calls_of_many_threads_are_all_counted_while_somebody_looks() -> None:
    ledger, threads, calls = Ledger(), 4, 2000

    def make_calls() -> None:
        for _ in range(calls):
            ledger.begin()
            ledger.end()

    running = [threading.Thread(target=make_calls) for _ in range(threads)]
    for each in running:
        each.start()
    while any(each.is_alive() for each in running):
        said = ledger.balance("g1/0-1#0", 0)
        assert said is None or 0 <= said.collectives <= threads * calls
    said = ledger.balance("g1/0-1#0", 0)
    assert said is not None
    assert said.collectives == threads * calls
