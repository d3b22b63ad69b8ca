"""When to look for a verdict: about once for each, without being late by much."""

import random

import pytest

from deadpool.trainer_hooks.protection.looks import Looks


def looked(looks: Looks, began_s: float, comes_after_s: float) -> tuple[int, float]:
    """Returns how many looks it takes, and how late the verdict is known."""
    looks.begin(began_s)
    count, now_s = 0, began_s
    while True:
        now_s += looks.pause_s()
        count += 1
        if now_s >= began_s + comes_after_s:
            looks.found(now_s)
            return count, now_s - began_s - comes_after_s
        looks.nothing()


@pytest.mark.parametrize("usual_s", [0.002, 0.02, 0.1])
def test_a_verdict_takes_about_one_look_and_is_soon_known(usual_s: float) -> None:
    looks, draws = Looks(), random.Random(0)
    found = [looked(looks, 0.0, usual_s * draws.uniform(0.4, 1.6)) for _ in range(500)][20:]
    assert sum(count for count, _ in found) < 1.2 * len(found)
    assert sum(late_s for _, late_s in found) < 2 * usual_s * len(found)


def test_verdicts_that_come_sooner_are_looked_for_sooner() -> None:
    looks = Looks()
    for _ in range(3):
        looked(looks, 0.0, 0.2)
    for _ in range(300):
        looked(looks, 0.0, 0.01)
    assert looked(looks, 0.0, 0.01)[1] < 0.02


def test_who_waits_looks_at_once_and_less_and_less_often() -> None:
    looks = Looks()
    looks.begin(0.0)
    pauses = [looks.hurried_pause_s() for _ in range(40)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.001
    assert pauses[-1] == 0.25
