"""What a state_dict may give comes back as it was, the same types in the same order, by bytes that run no code."""

import math
from collections import Counter, OrderedDict, defaultdict, deque
from io import BytesIO
from typing import Any

import numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deadpool.trainer_hooks.state.storable import decode, encode

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.complex_numbers(allow_nan=False) | st.floats(width=32).map(numpy.float32) | st.integers(0, 255).map(numpy.uint8)
)  # fmt: skip
KEYS = st.text(max_size=3) | st.integers() | st.booleans() | st.tuples(st.integers(), st.text(max_size=2))
SETS = st.sets(st.integers()) | st.frozensets(st.text(max_size=3))


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    rows = st.dictionaries(KEYS, parts, max_size=3)
    return (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.lists(parts, max_size=3).map(lambda each: deque(each, 5))
        | rows
        | rows.map(OrderedDict)
        | rows.map(lambda each: defaultdict(list, each))
        | st.dictionaries(KEYS, st.integers(-2, 3), max_size=3).map(Counter)
    )


def described(value: Any) -> Any:
    """Returns the value with all types said, as something that can be compared."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(described(key), described(part)) for key, part in value.items()], getattr(value, "default_factory", None)
    if isinstance(value, (list, tuple, deque)):
        return kind, [described(part) for part in value], getattr(value, "maxlen", None)
    if isinstance(value, (float, numpy.floating)) and math.isnan(value):
        return kind, "nan"
    return kind, value


@settings(max_examples=300, deadline=None)
@given(st.recursive(SCALARS | SETS, containers, max_leaves=8))
def test_it_comes_back(value: Any) -> None:
    left_out: list[str] = []
    stored = BytesIO()
    torch.save(encode(value, "value", left_out), stored)
    stored.seek(0)
    assert left_out == []
    assert described(decode(torch.load(stored, weights_only=True))) == described(value)
