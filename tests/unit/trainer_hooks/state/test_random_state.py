"""The random generators' states are copied once as long as nobody draws, and never twice the same after somebody has."""

import random
from collections.abc import Callable

import numpy
import pytest
import torch

from deadpool.trainer_hooks.state import random_state

DRAWS = [
    random.random,
    lambda: random.gauss(0.0, 1.0),
    numpy.random.random,
    numpy.random.standard_normal,
    lambda: torch.rand(1),
    lambda: torch.manual_seed(7),
]


def drawn() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0.0, 1.0), numpy.random.standard_normal(), torch.rand(1).item()


@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_of_any_generator_is_another_state(draw: Callable[[], object]) -> None:
    torch.manual_seed(6)
    before = random_state.capture()
    assert random_state.capture() is before
    draw()
    after = random_state.capture()
    assert after is not before
    assert random_state.capture() is after
    expected = drawn()
    random_state.restore(after)
    assert drawn() == expected
    random_state.restore(before)
    draw()
    assert drawn() == expected
