"""What a script reports counts with its step, and must be a number with a short name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.reports import Reports, checked_numbers


@pytest.fixture
def written() -> dict[str, float]:
    return {}


@pytest.fixture
def reports(written: dict[str, float]) -> Reports:
    return Reports(written.__setitem__)


def test_a_step_that_is_discarded_has_reported_nothing(reports: Reports, written: dict[str, float]) -> None:
    reports.step_begins()
    reports.add({"loss": 3.0, "tokens": 100})
    assert written == {}
    reports.step_ends(completed=False)
    assert written == {}
    reports.step_begins()
    reports.add({"loss": torch.tensor(2.0), "tokens": 100})
    reports.add({"loss": 1.5, "tokens": 50})
    reports.step_ends(completed=True)
    assert written == {"loss": 1.5, "tokens": 150.0}


def test_between_two_steps_it_counts_immediately(reports: Reports, written: dict[str, float]) -> None:
    reports.add({"loss": None, "tokens": 10})
    reports.add({"tokens": 10, "held_out": 0.5})
    assert written == {"tokens": 20.0, "held_out": 0.5}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"loss": "high"}, "loss is no number"),
        ({"loss": torch.zeros(2)}, "loss is no number"),
        ({"x" * 33: 1.0}, "use a name of 32 bytes at most"),
    ],
)
def test_what_cannot_be_shown_is_refused(numbers: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        checked_numbers(numbers)


def test_a_number_that_is_none_is_shown_as_it_is() -> None:
    assert str(checked_numbers({"loss": float("nan")})["loss"]) == "nan"


def test_too_many_names_are_refused_where_they_are_reported() -> None:
    def full(name: str, value: float) -> None:
        raise ValueError(f"{name}: there are 16 numbers already")

    write: Callable[[str, float], None] = full
    with pytest.raises(ConfigError, match="there are 16"):
        Reports(write).add({"loss": 1.0})
