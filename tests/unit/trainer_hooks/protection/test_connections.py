"""Over how many connections states travel: as many as make large ones faster."""

from collections.abc import Callable

import pytest

from deadpool.trainer_hooks.protection.connections import AUTO, LARGE_BYTES, Connections, to_fetch

STATES = 16


def numbers(rate: Callable[[int], float], sent_bytes: int = LARGE_BYTES, wanted: int = AUTO) -> list[int]:
    """Returns how many connections each of some states travels over, when they have that rate with so many."""
    connections, used = Connections(wanted), []
    for _ in range(STATES):
        used.append(connections.number)
        connections.took(sent_bytes, sent_bytes / rate(connections.number))
    return used


@pytest.mark.parametrize(
    ("rate", "settled"),
    [
        (lambda number: 1e9, 1),
        (lambda number: 1e8 * min(number, 2), 2),
        (lambda number: 1e8 * min(number, 5), 8),
        (lambda number: 1e8 * number, 8),
        (lambda number: 1e9 / number, 1),
    ],
)
def test_more_are_used_as_long_as_each_step_makes_it_faster(rate: Callable[[int], float], settled: int) -> None:
    used = numbers(rate)
    assert used[:4] == [1] * 4
    assert used[-2:] == [settled] * 2


def test_a_single_slow_state_is_no_reason_to_go_back() -> None:
    slow_once = iter([1e8] * 4 + [2e8, 5e7, 2e8, 2e8] + [2e8] * STATES)
    assert numbers(lambda number: next(slow_once))[-1] == 2


def test_the_first_state_over_new_connections_says_nothing() -> None:
    growing = iter([1e8] * 4 + [5e7, 2e8, 2e8] + [5e7, 4e8, 4e8] + [5e7, 8e8, 8e8] + [8e8] * STATES)
    assert numbers(lambda number: next(growing))[-1] == 8


def test_what_cannot_be_opened_is_tried_once() -> None:
    connections = Connections(AUTO)
    for _ in range(4):
        connections.took(LARGE_BYTES, 1.0)
    assert connections.number == 2
    connections.failed()
    for _ in range(STATES):
        connections.took(LARGE_BYTES, 1.0)
    assert connections.number == 1


def test_small_states_say_nothing_and_a_number_that_was_asked_for_stays() -> None:
    assert numbers(lambda number: 1e8 * number, sent_bytes=LARGE_BYTES - 1) == [1] * STATES
    assert numbers(lambda number: 1e8 * number, wanted=3) == [3] * STATES


@pytest.mark.parametrize(
    ("wanted", "round_trip_s", "number"),
    [(3, 1.0, 3), (1, 1.0, 1), (AUTO, 5e-5, 1), (AUTO, 0.002, 2), (AUTO, 0.02, 8), (AUTO, 1.0, 8)],
)
def test_a_state_is_fetched_over_as_many_as_the_link_is_long(wanted: int, round_trip_s: float, number: int) -> None:
    assert to_fetch(wanted, round_trip_s) == number
