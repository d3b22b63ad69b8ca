"""Which batches belong to which step. A step gets the same ones again: from memory, or from the loader, brought to its place."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.data.sources import LoaderSource, source_of
from deadpool.trainer_hooks.data.streams import drawn_apart, mixed, seed_of_now

BATCHES = "deadpool/batches"  # the loader's place, among the extras of the state
STEPS_KEPT = 3  # a recovery goes back by one step or two; what lies further back is made again
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)


class StepBatches(Protocol):
    """What a step is given."""

    def of(self, step: int) -> Any:
        """Returns the batch of a step, or the list of them: of the one after the last, or of one that is done again."""

    def forget(self, step: int) -> None:
        """What `of(step)` has returned may be wrong: it was found while ranks were gone, with whom a loader may communicate."""


class FromFunction:
    """A function from a batch's number to the batch: nothing to be kept in mind. Its random numbers are the training's own."""

    def __init__(self, function: Callable[[int], Any], per_step: int) -> None:
        self._function, self._per_step = function, per_step

    def of(self, step: int) -> Any:
        return _given([self._function(step * self._per_step + index) for index in range(self._per_step)], self._per_step)

    def forget(self, step: int) -> None:
        pass


class NoBatches:
    """For a loop that finds its data itself."""

    def of(self, step: int) -> Any:
        return None

    def forget(self, step: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class LoaderPlace:
    """Where a loader stands. `began`, `now`: states of its own generators when this epoch began, and now.

    `taken`: batches of this epoch. `loader`: what a StatefulDataLoader says of itself; None before the first batch of all.
    """

    epoch: int = 0
    taken: int = 0
    began: tuple[Tensor, ...] = ()
    now: tuple[Tensor, ...] = ()
    loader: Any = field(default=None, compare=False)

    def is_same(self, other: "LoaderPlace") -> bool:
        return (self.epoch, self.taken) == (other.epoch, other.taken) and _equal(self.began, other.began)


class FromLoader:
    """The batches of a loader that is iterated again and again, `per_step` for each step. Its place is part of the state.

    `epochs_apart`: the last step of an epoch gets what is left of it, instead of the first batches of the next one as well.
    """

    def __init__(self, source: LoaderSource, per_step: int, *, epochs_apart: bool = False) -> None:
        self._source, self._per_step, self._epochs_apart = source, per_step, epochs_apart
        self._seed = seed_of_now()
        self._place = LoaderPlace(now=self._generator_states())
        self._iterator: Iterator[Any] | None = None
        self._stands: LoaderPlace | None = self._place  # the loader itself, which may be ahead of what is asked for
        self._kept: dict[int, _Kept] = {}

    def of(self, step: int) -> Any:
        """ConfigError: the loader is empty."""
        kept = self._kept.get(step)
        if kept is not None and kept.before.is_same(self._place) and kept.is_whole():
            self._place = kept.after
            return _given(kept.batches(), self._per_step)
        before = self._place
        if self._stands is None or not self._stands.is_same(before):
            self._move(before)
        self._stands = None  # an error may leave it anywhere
        batches = list(self._taken())
        self._place = self._stands = self._placed()
        self._kept[step] = _Kept(before, self._place, batches)
        for old in [each for each in self._kept if not step - STEPS_KEPT < each <= step]:
            del self._kept[old]
        return _given(self._kept[step].batches(), self._per_step)

    def state_dict(self) -> dict[str, Any]:
        place = self._place
        return {
            "seed": self._seed,
            "epoch": place.epoch,
            "taken": place.taken,
            "began": list(place.began),
            "now": list(place.now),
            "loader": place.loader,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["seed"] != self._seed:
            self._seed, self._stands = state_dict["seed"], None
            self._kept.clear()
        self._place = LoaderPlace(
            epoch=state_dict["epoch"],
            taken=state_dict["taken"],
            began=tuple(state_dict["began"]),
            now=tuple(state_dict["now"]),
            loader=state_dict["loader"],
        )
        if not self._is_at_hand():
            self._move(self._place)  # now, before the others wait for this process's first step

    def forget(self, step: int) -> None:
        self._kept.pop(step, None)
        self._stands = None

    # ------------------------------------------------------------ the loader

    def _is_at_hand(self) -> bool:
        kept = any(each.before.is_same(self._place) and each.is_whole() for each in self._kept.values())
        return kept or (self._stands is not None and self._stands.is_same(self._place))

    def _taken(self) -> Iterator[Any]:
        """Yields the batches of one step, from epoch to epoch."""
        count = 0
        while count < self._per_step:
            batch = self._next()
            if batch is not _END:
                count += 1
                yield batch
            elif count and self._epochs_apart:
                return
            else:
                self._begin_epoch(self._place.epoch + 1)

    def _next(self) -> Any:
        if self._iterator is None:
            self._begin_epoch(self._place.epoch)
            assert self._iterator is not None
        place = self._place
        try:
            with drawn_apart(mixed(self._seed, place.epoch, place.taken)):
                batch = next(self._iterator)
        except StopIteration:
            if place.taken == 0:
                raise ConfigError(f"guard.steps(): epoch {place.epoch} of the loader has no batch") from None
            return _END
        self._place = LoaderPlace(epoch=place.epoch, taken=place.taken + 1, began=place.began)
        return batch

    def _begin_epoch(self, epoch: int) -> None:
        self._place = LoaderPlace(epoch=epoch, began=self._generator_states())
        self._iterator = self._source.begin(self._seed, epoch, 0, None)

    def _placed(self) -> LoaderPlace:
        place = self._place
        return LoaderPlace(
            epoch=place.epoch,
            taken=place.taken,
            began=place.began,
            now=self._generator_states(),
            loader=self._source.state(),
        )

    def _move(self, place: LoaderPlace) -> None:
        """Brings the loader to a place at which it has been before, in this process or another."""
        self._iterator = None
        self._source.forget()
        if place.taken:
            self._set_generators(place.began)
            self._iterator = self._source.begin(self._seed, place.epoch, place.taken, place.loader)
        self._set_generators(place.now)
        self._stands = place

    def _generator_states(self) -> tuple[Tensor, ...]:
        return tuple(each.get_state() for each in self._source.generators())

    def _set_generators(self, states: tuple[Tensor, ...]) -> None:
        for generator, state in zip(self._source.generators(), states, strict=True):
            generator.set_state(state)


class _Kept:
    """The batches of a step, for when it is done again: what the step does to the containers that it is given stays with it."""

    def __init__(self, before: LoaderPlace, after: LoaderPlace, batches: list[Any]) -> None:
        self.before, self.after = before, after
        self._batches = batches
        self._tensors: list[tuple[Tensor, int]] = []
        self._known = _note(batches, self._tensors)

    def is_whole(self) -> bool:
        """Returns whether nothing has been written into them; of objects that are not known here nobody can say so."""
        return self._known and all(tensor._version == version for tensor, version in self._tensors)

    def batches(self) -> list[Any]:
        copied: list[Any] = _copied(self._batches) if self._known else self._batches
        return copied


def batches_of(loader: Any, per_step: int, *, epochs_apart: bool = False) -> StepBatches:
    """Returns the batches of each step. ConfigError: not something that could give the same batches again."""
    if per_step < 1:
        raise ConfigError(f"guard.steps(accumulate={per_step}): a step takes 1 batch or more")
    if loader is None:
        return NoBatches()
    if callable(loader) and not hasattr(loader, "__iter__"):
        return FromFunction(loader, per_step)
    return FromLoader(source_of(loader), per_step, epochs_apart=epochs_apart)


_END = object()


def _given(batches: list[Any], per_step: int) -> Any:
    return batches[0] if per_step == 1 else batches


def _equal(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _note(value: Any, tensors: list[tuple[Tensor, int]]) -> bool:
    """Notes the tensors in a batch with their versions; returns whether all else in it can be copied."""
    if isinstance(value, Tensor):
        tensors.append((value, value._version))
        return True
    if isinstance(value, Mapping):
        return isinstance(value, MutableMapping) and all(_note(each, tensors) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_note(each, tensors) for each in value)
    return isinstance(value, (*_IMMUTABLE, numpy.ndarray, numpy.generic))


def _copied(value: Any) -> Any:
    """Returns a batch in new containers; tensors are the same ones."""
    if isinstance(value, MutableMapping):
        result = copy(value)
        for key in value:
            result[key] = _copied(value[key])
        return result
    if isinstance(value, list):
        return [_copied(each) for each in value]
    if isinstance(value, tuple):
        parts = [_copied(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value.copy() if isinstance(value, numpy.ndarray) else value
