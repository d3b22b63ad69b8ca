"""The state of every random generator that the process has: python, numpy, torch, and each CUDA device."""

import random
from array import array
from typing import Any

import numpy
import torch


def capture() -> dict[str, Any]:
    """Returns a copy of all states, in types that can be stored (storable.py)."""
    version, words, gauss = random.getstate()
    name, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "python": [version, torch.frombuffer(array("q", words), dtype=torch.int64), gauss],
        "numpy": [name, torch.from_numpy(numpy.asarray(keys, dtype="int64")), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if _cuda_is_used() else [],
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
