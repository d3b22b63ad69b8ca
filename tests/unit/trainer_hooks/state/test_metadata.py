"""What is kept from one state's metadata to the next is never what another value would have been packed to."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from deadpool.trainer_hooks.state.metadata import GAPS, MetaPacker, pack_meta

ALIKE = [0, False, 0.0, -0.0, 1, True, 1.0, float("nan"), "1", None, (1, 2), [1, 2], torch.Size([1, 2]), {"a": 1, "b": 2}]
ALIKE += [{"b": 2, "a": 1}, {"a": True, "b": 2}, [[1], (1,)], torch.float32, torch.ones(2), torch.ones(2, dtype=torch.float64)]
ALIKE += [
    torch.ones(2, 1),
    torch.ones(3, 2).t(),
    torch.ones(2, dtype=torch.bfloat16),
    [torch.zeros(2), 1],
    [torch.zeros(2), True],
]


@given(st.lists(st.fixed_dictionaries({"one": st.sampled_from(ALIKE), "other": st.sampled_from(ALIKE)}), max_size=8))
def test_states_that_follow_each_other_are_packed_as_if_each_were_the_first(metas: list[dict[str, Any]]) -> None:
    packer = MetaPacker()
    for meta in metas:
        assert packer.pack({**meta, GAPS: []}) == pack_meta({**meta, GAPS: []})
