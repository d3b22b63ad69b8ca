"""Digests of states and values, and what is found beside the state."""

from dataclasses import dataclass

import numpy
import pytest
import torch

from deadpool.trainer_hooks.drill.digests import digest, leaves


@dataclass(frozen=True)
class Losses:
    train: float
    held_out: float | None


def test_every_leaf_has_its_path() -> None:
    value = {"a": [1, Losses(0.5, None)], "b": {"c": torch.tensor(2)}}
    assert dict(leaves(value)) == {"a[0]": "1", "a[1].train": "0.5", "a[1].held_out": "None", "b.c": "int64 2"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0])),
        (torch.ones(2), torch.ones(2, dtype=torch.bfloat16)),
        (torch.ones(4), torch.ones(2, 2)),
        (list(range(100)), [*range(99), 0]),
        (numpy.float32(1), numpy.float64(1)),
    ],
)
def test_values_that_are_not_the_same_to_the_bit_have_other_digests(one: object, other: object) -> None:
    assert digest(one) != digest(other)


def test_the_same_value_has_the_same_digest() -> None:
    assert digest(torch.arange(6).view(2, 3).T) == digest(torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert digest(float("nan")) == digest(float("nan"))
