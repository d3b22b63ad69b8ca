"""What a state_dict may give comes back as it was, the same types in the same order, by bytes that run no code."""

import math
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deadpool.host.errors import SnapshotError
from deadpool.trainer_hooks.protection.copy_engine import as_bytes
from deadpool.trainer_hooks.state.metadata import GAPS, pack_meta, unpack_meta
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


@pytest.mark.filterwarnings("ignore:(?s).* a set comes back:RuntimeWarning")  # what is in it does; a key may be a line break
@settings(max_examples=300, deadline=None)
@given(st.recursive(SCALARS | SETS, containers, max_leaves=8))
def test_it_comes_back(value: Any) -> None:
    left_out: list[str] = []
    stored = pack_meta({"value": encode(value, "value", left_out), GAPS: []})
    assert left_out == []
    assert described(decode(unpack_meta(stored)["value"])) == described(value)


TENSORS = {
    "row-major": torch.arange(12.0).view(3, 4),
    "turned": torch.arange(12.0).view(3, 4).t(),
    "bfloat16": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
    "one number": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3, dtype=torch.int16),
    "truth": torch.tensor([True, False, True]),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "not a number": torch.tensor([float("nan"), float("-inf")]),
}


def test_tensors_in_metadata_come_back_to_the_bit() -> None:
    left_out: list[str] = []
    found = unpack_meta(pack_meta({"tensors": encode(TENSORS, "tensors", left_out), GAPS: []}))["tensors"]
    assert left_out == []
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].stride() == tensor.stride(), name
        assert torch.equal(as_bytes(found[name]), as_bytes(tensor)), name


PLAIN = [
    float("inf"),
    -0.0,
    1e-320,
    1 << 300,
    -(1 << 20000),
    "\ud800",
    torch.float16,
    torch.device("cpu"),
    torch.Size((2, 3)),
    {"": 1},
]


@pytest.mark.parametrize("value", PLAIN, ids=[type(value).__name__ + str(number) for number, value in enumerate(PLAIN)])
def test_values_at_their_limits_come_back(value: Any) -> None:
    stored = pack_meta({"value": encode(value, "value", []), GAPS: []})
    again = decode(unpack_meta(stored)["value"])
    assert type(again) is type(value)
    assert again == value
    assert not isinstance(value, float) or math.copysign(1, value) == math.copysign(1, again)


def test_metadata_of_another_kind_is_named() -> None:
    with pytest.raises(SnapshotError, match="another version"):
        unpack_meta(b"PK\x03\x04 what torch.save has written")
