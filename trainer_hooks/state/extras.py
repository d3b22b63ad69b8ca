"""What a script registers beside models and optimizers: anything with a state_dict, plain containers, random generators."""

import random
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy
import torch
from torch.utils.data import DataLoader

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.state.containers import Container, Plain, is_container


@runtime_checkable
class Stateful(Protocol):
    """What can be registered as `extra`: a scheduler, a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


Generator = torch.Generator | random.Random | numpy.random.Generator | numpy.random.RandomState | numpy.random.BitGenerator
Extra = Stateful | Generator | Plain


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
    if isinstance(extra, numpy.random.BitGenerator):
        return _BitGenerator(extra)
    if is_container(extra):
        return Container(extra)
    raise ConfigError(
        f"protect(extra={{{name!r}: ...}}): {type(extra).__name__} has no state_dict() and load_state_dict(); pass an object "
        "that has both, a random generator of torch, numpy or python, or a dict, list, set, deque, array, tensor or dataclass"
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
        return _BitGenerator(self._generator.bit_generator).state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        _BitGenerator(self._generator.bit_generator).load_state_dict(state_dict)


class _BitGenerator:
    def __init__(self, generator: numpy.random.BitGenerator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.state, "spawned": spawned(self._generator)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generator.state = state_dict["state"]
        _set_spawned(self._generator, state_dict.get("spawned", 0))


def spawned(generator: numpy.random.BitGenerator) -> int:
    """Returns how many others have been made from the generator (spawn): the next one depends on it, and its state lacks it."""
    return getattr(getattr(generator, "seed_seq", None), "n_children_spawned", 0)


def _set_spawned(generator: numpy.random.BitGenerator, count: int) -> None:
    seeds: Any = getattr(generator, "seed_seq", None)
    now = spawned(generator)
    if now < count:
        seeds.spawn(count - now)
    elif now > count:  # the count cannot be set: the generator gets seeds that are the same but for it
        seeds = type(seeds)(seeds.entropy, spawn_key=seeds.spawn_key, pool_size=seeds.pool_size, n_children_spawned=count)
        generator.__setstate__((generator.state, seeds))  # type: ignore[attr-defined]


class _LegacyNumpyGenerator:
    def __init__(self, generator: numpy.random.RandomState) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state(legacy=False)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generator.set_state(state_dict["state"])
