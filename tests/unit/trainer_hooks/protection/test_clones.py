"""A volatile tensor's clone is made again exactly when its bytes have changed, however they were written."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deadpool.trainer_hooks.protection.clones import Clones


def test_what_has_not_changed_keeps_its_clone_also_where_it_is_not_a_number() -> None:
    clones, buffer = Clones(), torch.full((50_000,), torch.nan)
    first = clones.of(0, buffer)
    assert first is not buffer
    assert clones.of(0, buffer) is first
    assert clones.of(1, buffer) is not first


@pytest.mark.parametrize("shape", [(50_000,), (3,)])
@settings(max_examples=30, deadline=None)
@given(writes=st.lists(st.sampled_from(["none", "in place", "data", "numpy", "assign", "set", "grow", "norm"]), max_size=6))
def test_each_clone_has_the_bytes_of_its_moment(shape: tuple[int], writes: list[str]) -> None:
    norm, clones = nn.BatchNorm1d(shape[0]), Clones()
    buffer, kept = norm.running_mean, list[tuple[torch.Tensor, torch.Tensor]]()
    assert buffer is not None
    for write in writes:
        match write:
            case "in place":
                buffer[1:2] += 1
            case "data":
                buffer.data[-1] += 1
            case "numpy":
                buffer.numpy()[0] += 1
            case "assign":
                buffer.data = buffer.data * 2
            case "set":
                buffer.set_(torch.rand(shape))  # type: ignore[call-overload]
            case "grow":
                buffer.data = torch.rand(buffer.numel() + 1)
            case "norm" if buffer.numel() == shape[0]:
                norm(torch.rand(2, shape[0]))
        kept.append((clones.of(0, buffer), copy.deepcopy(buffer)))
    assert all(torch.equal(clone, truth) for clone, truth in kept)
