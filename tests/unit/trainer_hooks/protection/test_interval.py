"""How often a state is kept safe: as often as costs the training nothing, and small ones always."""

import pytest

from deadpool.trainer_hooks.protection.interval import ALWAYS_BYTES, AUTO, INTERVAL_MAX, Interval, Measured, StepTimes

LARGE = ALWAYS_BYTES + 1


@pytest.mark.parametrize(
    ("size_bytes", "busy_s", "stall_s", "step_s", "wished"),
    [
        (LARGE, 0.5, 0.0, 1.0, 1),  # it keeps up
        (LARGE, 1.9, 0.0, 1.5, 2),
        (LARGE, 1.9, 0.4, 1.5, 36),  # one wait of 0.4 s is 0.75 % of 36 steps
        (LARGE, 1.0, 0.0, 1e-4, INTERVAL_MAX),
        (ALWAYS_BYTES, 1.9, 0.4, 0.01, 1),  # a small state, on a machine that is busy just now
        (LARGE, 1.9, 0.0, 0.0, 1),  # nobody knows yet what a step takes
    ],
)
def test_as_often_as_costs_nothing(size_bytes: int, busy_s: float, stall_s: float, step_s: float, wished: int) -> None:
    interval = Interval(AUTO)
    assert interval.wished(step_s) == 1
    for _ in range(3):
        interval.measured(Measured(busy_s=busy_s, stall_s=stall_s), size_bytes)
    assert interval.wished(step_s) == wished


def test_one_slow_state_changes_nothing() -> None:
    interval = Interval(AUTO)
    for busy_s, stall_s in ((0.5, 0.0), (9.0, 9.0), (0.5, 0.0)):
        interval.measured(Measured(busy_s=busy_s, stall_s=stall_s), LARGE)
    assert interval.wished(1.0) == 1


def test_a_number_that_was_asked_for_is_kept() -> None:
    interval = Interval(3)
    interval.measured(Measured(busy_s=60.0, stall_s=60.0), LARGE)
    assert interval.wished(1.0) == 3


def test_a_step_is_measured_without_what_it_waits_for_protection() -> None:
    times = StepTimes()
    assert times.step_s() == 0.0
    for now_s, stalled_s in ((10.0, 0.0), (11.0, 0.0), (14.0, 2.0), (15.0, 2.0)):
        times.boundary(stalled_s=stalled_s, now_s=now_s)
    assert times.step_s() == 1.0
