"""What a script registers beside models and optimizers: anything with a state_dict, and random generators of its own."""

import random
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy
import torch
from torch.utils.data import DataLoader

from deadpool.host.errors import ConfigError


@runtime_checkable
class Stateful(Protocol):
    """What can be registered as `extra`: a scheduler, a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


Extra = Stateful | torch.Generator | random.Random | numpy.random.Generator | numpy.random.RandomState


def stateful(extras: Mapping[str, Extra]) -> dict[str, Stateful]:
    """Returns each extra as something with a state_dict; ConfigError names the first that cannot be one."""
    return {name: _stateful(name, extra) for name, extra in extras.items()}


def _stateful(name: str, extra: Extra) -> Stateful:
    if isinstance(extra, type):
        raise ConfigError(f"protect(extra={{{name!r}: ...}}): {extra.__name__} is a class; pass the object that was made of it")
    if isinstance(extra, DataLoader):
        raise ConfigError(
            f"protect(extra={{{name!r}: ...}}): a {type(extra).__name__} goes back at its next iter() only, so an iterator would "
            "be ahead; leave it out and write: for step, batch in guard.steps(loader, until=...)"
        )
    if isinstance(extra, Stateful):
        return extra
    if isinstance(extra, torch.Generator):
        return _TorchGenerator(extra)
    if isinstance(extra, random.Random):
        return _PythonGenerator(extra)
    if isinstance(extra, numpy.random.Generator):
        return _NumpyGenerator(extra)
    if isinstance(extra, numpy.random.RandomState):
        return _LegacyNumpyGenerator(extra)
    raise ConfigError(
        f"protect(extra={{{name!r}: ...}}): {type(extra).__name__} has no state_dict() and load_state_dict(); "
        "pass an object that has both, or a random generator of torch, numpy or python"
    )


class _TorchGenerator:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generator.set_state(state_dict["state"].cpu())


class _PythonGenerator:
    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generator.setstate(state_dict["state"])


class _NumpyGenerator:
    def __init__(self, generator: numpy.random.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.bit_generator.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generator.bit_generator.state = state_dict["state"]


class _LegacyNumpyGenerator:
    def __init__(self, generator: numpy.random.RandomState) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state(legacy=False)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generator.set_state(state_dict["state"])
