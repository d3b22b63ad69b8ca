"""Small tensors that are gathered lie in the slot as a copy of each of them would."""

import os
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from deadpool.proto.vault.layout import Layout
from deadpool.trainer_hooks.protection.copy_groups import SMALL_BYTES, SMALL_ITEMS_MAX, groups_of
from deadpool.trainer_hooks.protection.gather import Gather
from deadpool.trainer_hooks.protection.snapshot import layout_of
from deadpool.trainer_hooks.state.items import Held


def held_of(sizes: list[int]) -> list[Held]:
    return [
        Held(key=f"model/{index}", tensor=torch.randint(0, 256, (size,), dtype=torch.uint8), volatile=False)
        for index, size in enumerate(sizes)
    ]


def addresses(tensors: list[Tensor]) -> NDArray[numpy.uint64]:
    return numpy.array([each.data_ptr() for each in tensors], dtype=numpy.uint64)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.one_of(st.integers(0, 200), st.just(SMALL_BYTES)), min_size=1, max_size=3 * SMALL_ITEMS_MAX))
def test_each_item_lies_where_the_layout_has_it(tmp_path: Path, sizes: list[int]) -> None:
    held = held_of(sizes)
    layout, tensors = layout_of(held, {}), {each.key: each.tensor for each in held}
    path = tmp_path / "slot"
    path.write_bytes(b"\1" * (64 + layout.data_bytes))
    file = os.open(path, os.O_RDWR)
    try:
        for group in groups_of(layout):
            assert group.small
            Gather(group.items).write(addresses([tensors[item.key] for item in group.items]), file, 64 + group.begin)
    finally:
        os.close(file)
    data = path.read_bytes()
    assert data[:64] == b"\1" * 64
    for item in layout.items:
        assert data[64 + item.offset : 64 + item.offset + item.nbytes] == tensors[item.key].numpy().tobytes()


def test_a_file_that_takes_nothing_is_said(tmp_path: Path) -> None:
    held = held_of([10, 20])
    layout = layout_of(held, {})
    (tmp_path / "slot").touch()
    file = os.open(tmp_path / "slot", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="-1 of 84 bytes were written: Bad file descriptor"):
            Gather(layout.items).write(addresses([each.tensor for each in held]), file, 0)
    finally:
        os.close(file)


@given(
    sizes=st.lists(st.sampled_from([0, 1, 64, SMALL_BYTES, SMALL_BYTES + 1, 1 << 20, 3 << 20]), max_size=40),
    shared=st.sets(st.integers(0, 40)),
)
def test_groups_are_neighbours_of_one_kind_and_leave_nothing_out(sizes: list[int], shared: set[int]) -> None:
    held = [
        Held(key=f"model/{index}", tensor=torch.empty(size, dtype=torch.uint8, device="meta"), volatile=False)
        for index, size in enumerate(sizes)
    ]
    layout: Layout = layout_of(held, {f"model/{index}": (1,) for index in shared})
    groups = groups_of(layout)
    assert [item for group in groups for item in group.items] == list(layout.items)
    for group in groups:
        assert len({(item.peers, item.nbytes <= SMALL_BYTES) for item in group.items}) == 1
        assert len(group.items) == 1 or group.nbytes <= 1 << 20
        assert (group.begin, group.end) == (group.slices[0].start, group.slices[-1].stop)
