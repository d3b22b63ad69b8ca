"""The state of every random generator that the process has: python, numpy, torch, and each CUDA device."""

import random
from array import array
from typing import Any

import numpy
import torch

_Words = tuple[Any, Any, torch.Tensor, list[torch.Tensor]]

_captured: list[tuple[_Words, dict[str, Any]]] = []  # what the generators gave last, and how that can be stored


def capture() -> dict[str, Any]:
    """Returns a copy of all states, in types that can be stored (storable.py); the same object as long as nobody draws."""
    words = (
        random.getstate(),
        numpy.random.get_state(legacy=True),
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if _cuda_is_used() else [],
    )
    if not (_captured and _same(_captured[0][0], words)):
        _captured[:] = [(words, _storable(words))]
    return _captured[0][1]


def _same(one: _Words, other: _Words) -> bool:
    (name, keys, *rest), (other_name, other_keys, *other_rest) = one[1], other[1]
    return (
        one[0] == other[0]
        and (name, rest) == (other_name, other_rest)
        and numpy.array_equal(keys, other_keys)
        and torch.equal(one[2], other[2])
        and len(one[3]) == len(other[3])
        and all(map(torch.equal, one[3], other[3]))
    )


def _storable(words: _Words) -> dict[str, Any]:
    (version, numbers, gauss), (name, keys, *rest), torch_state, cuda_states = words
    return {
        "python": [version, torch.frombuffer(array("q", numbers), dtype=torch.int64), gauss],
        "numpy": [name, torch.from_numpy(numpy.asarray(keys, dtype="int64")), *rest],
        "torch": torch_state,
        "cuda": cuda_states,
    }


def restore(states: dict[str, Any]) -> None:
    """Sets all generators; those of CUDA devices that this process does not see stay as they are."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, *rest = states["numpy"]
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(states["torch"])
    if _cuda_is_used():
        for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)


def _cuda_is_used() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
