"""The state of every random generator that the process has: python, numpy, torch, and each CUDA device."""

import random
from array import array
from collections.abc import Callable
from typing import Any

import numpy
import torch

_captured: dict[str, tuple[Any, Any]] = {}  # by generator: what tells its state from another, and how that state can be stored
_together: list[tuple[tuple[Any, ...], dict[str, Any]]] = []  # what was captured last: of each generator, and as a whole


def capture() -> dict[str, Any]:
    """Returns a copy of all states, in types that can be stored (storable.py); the same object as long as nobody draws."""
    states = _python(), _numpy(), _torch(), _cuda()
    if not _together or any(now is not before for now, before in zip(states, _together[0][0], strict=True)):
        _together[:] = [(states, dict(zip(("python", "numpy", "torch", "cuda"), states, strict=True)))]
    return _together[0][1]


def _kept(name: str, words: Any, storable: Callable[[], Any]) -> Any:
    """Returns the generator's state as it can be stored: the same object as before as long as the words are the same."""
    known = _captured.get(name)
    if known is None or known[0] != words:
        known = _captured[name] = words, storable()
    return known[1]


def _python() -> list[Any]:
    words = version, numbers, gauss = random.getstate()
    kept: list[Any] = _kept("python", words, lambda: [version, torch.frombuffer(array("q", numbers), dtype=torch.int64), gauss])
    return kept


def _numpy() -> list[Any]:
    found: Any = numpy.random.get_state(legacy=True)
    name, keys, *rest = found
    words = name, keys.tobytes(), *rest
    kept: list[Any] = _kept("numpy", words, lambda: [name, torch.from_numpy(numpy.asarray(keys, dtype="int64")), *rest])
    return kept


def _torch() -> torch.Tensor:
    state = torch.get_rng_state()
    kept: torch.Tensor = _kept("torch", state.numpy().tobytes(), lambda: state)
    return kept


def _cuda() -> list[torch.Tensor]:
    states = torch.cuda.get_rng_state_all() if _cuda_is_used() else []
    kept: list[torch.Tensor] = _kept("cuda", [each.numpy().tobytes() for each in states], lambda: states)
    return kept


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
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
