"""The kinds of loaders, as something whose epochs can be begun anywhere: where the next batch is the one after `taken` others.

What must not be done again where it can be helped is to make batches only to drop them: of a loader with a map-style dataset the
indices are skipped, a StatefulDataLoader is given its state, of others the batches are made and dropped.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.data.streams import drawn_apart, mixed, set_all
from deadpool.trainer_hooks.data.workers import WorkerStreams


class LoaderSource(ABC):
    """A loader. Everything that it draws from the global generators depends on the seed, the epoch and the batch's number."""

    @abstractmethod
    def begin(self, seed: int, epoch: int, taken: int, state: Any) -> Iterator[Any]:
        """Returns an iterator over the epoch whose next batch is number `taken`. `state`: what `state()` has said there, or None:
        nobody has, and `taken` is 0.
        """

    @abstractmethod
    def forget(self) -> None:
        """The next epoch is not begun where another one has ended: nothing of an iterator that was made is used again."""

    @abstractmethod
    def generators(self) -> list[torch.Generator]:
        """Returns the loader's own generators, which it draws from when an epoch begins."""

    @abstractmethod
    def state(self) -> Any:
        """Returns a copy of what a new process has to know besides the number of batches; None where that is all."""


class AnyIterable(LoaderSource):
    """Something that `iter()` begins: batches are made and dropped."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def begin(self, seed: int, epoch: int, taken: int, state: Any) -> Iterator[Any]:
        set_epoch(self._loader, epoch)
        with drawn_apart(mixed(seed, epoch)):
            batches = iter(self._loader)
        for number in range(taken):
            with drawn_apart(mixed(seed, epoch, number)):
                next(batches)
        return batches

    def forget(self) -> None:
        pass

    def generators(self) -> list[torch.Generator]:
        return []

    def state(self) -> Any:
        return None


class _OfDataLoader(LoaderSource):
    """What all DataLoaders have: workers, and generators."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader
        self._streams = WorkerStreams(loader) if loader.num_workers else None

    def generators(self) -> list[torch.Generator]:
        found = [getattr(each, "generator", None) for each in _parts(self._loader)]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    def state(self) -> Any:
        return None

    def forget(self) -> None:
        self._drop_iterator()

    def _drop_iterator(self) -> None:
        loader: Any = self._loader
        if hasattr(loader, "load_state_dict"):
            loader.load_state_dict({})  # a StatefulDataLoader does not begin where it was then
        else:
            loader._iterator = None

    def _workers_begin(self, seed: int, epoch: int, first: int, *, turn: int = 0, batches: int | None = None) -> None:
        if self._streams is not None:
            self._streams.begins(seed, epoch, first, turn=turn, batches=batches)


class IterableLoader(_OfDataLoader):
    """A DataLoader of an IterableDataset. Its workers are new in each epoch: what they have drawn nobody could draw again."""

    def begin(self, seed: int, epoch: int, taken: int, state: Any) -> Iterator[Any]:
        self._drop_iterator()
        self._workers_begin(seed, epoch, 0)
        return AnyIterable(self._loader).begin(seed, epoch, taken, state)


class MapLoader(_OfDataLoader):
    """A DataLoader of a map-style dataset: its sampler's indices are skipped, before any worker hears of them."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        super().__init__(loader)
        self._attribute = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        self._indices = _NumberedIndices(getattr(loader, self._attribute))

    def begin(self, seed: int, epoch: int, taken: int, state: Any) -> Iterator[Any]:
        loader, indices = self._loader, self._indices
        set_epoch(loader, epoch)
        indices.seed, indices.skip = mixed(seed, epoch), taken
        indices.generators = [(each, each.get_state()) for each in self.generators()]
        self._workers_begin(seed, epoch, taken, batches=_length(indices.sampler))
        object.__setattr__(loader, self._attribute, indices)  # a DataLoader forbids it, for what it has derived from its sampler
        try:
            with drawn_apart(indices.seed):
                return iter(loader)
        finally:
            object.__setattr__(loader, self._attribute, indices.sampler)


class _NumberedIndices:
    """In a sampler's place while an epoch begins: what the sampler draws depends on the number of the batch alone.

    An iterator draws a seed for its workers before, from the loader's own generator if there is one; the iterator of persistent
    workers, which keeps this for all its epochs, does so only once. `generators`: the states in which the epoch began.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.seed = self.skip = 0
        self.generators: list[tuple[torch.Generator, torch.Tensor]] = []

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        seed, skip = self.seed, self.skip
        set_all(seed)
        for generator, state in self.generators:
            generator.set_state(state)
        indices = iter(self.sampler)
        number = 0
        while True:
            set_all(mixed(seed, number))
            try:
                found = next(indices)
            except StopIteration:
                return
            if number >= skip:
                yield found
            number += 1


class StatefulLoader(_OfDataLoader):
    """torchdata's StatefulDataLoader, of something that has a state of its own: its state counts from its next iterator on."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        super().__init__(loader)
        self._first = [(each, deepcopy(each.state_dict())) for each in _stateful_parts(loader)]

    def forget(self) -> None:
        super().forget()
        for part, state in self._first:  # those of the process itself; workers have copies
            part.load_state_dict(deepcopy(state))

    def begin(self, seed: int, epoch: int, taken: int, state: Any) -> Iterator[Any]:
        loader: Any = self._loader
        set_epoch(loader, epoch)
        self._drop_iterator()
        if state is not None:
            loader.load_state_dict(deepcopy(state))
            first = state["_snapshot"]["_snapshot_step"] if loader.num_workers else taken
            self._workers_begin(seed, epoch, first, turn=first % max(1, loader.num_workers))
        else:
            self._workers_begin(seed, epoch, 0)
        with drawn_apart(mixed(seed, epoch)):
            return iter(loader)

    def state(self) -> Any:
        loader: Any = self._loader
        return deepcopy(loader.state_dict())


def source_of(loader: Any) -> LoaderSource:
    """Returns the loader as a source; ConfigError when nothing can make its batches again."""
    if isinstance(loader, LoaderSource):
        return loader
    if isinstance(loader, Iterator):
        raise ConfigError(
            f"guard.steps({type(loader).__name__}): this is an iterator, which cannot go back; pass what it was made of "
            "(a DataLoader, a list) or a function from a batch's number to the batch"
        )
    if isinstance(loader, DataLoader):
        if hasattr(loader, "load_state_dict") and _stateful_parts(loader):
            return StatefulLoader(loader)
        return IterableLoader(loader) if isinstance(loader.dataset, IterableDataset) else MapLoader(loader)
    if not isinstance(loader, Iterable):
        raise ConfigError(f"guard.steps({type(loader).__name__}): not a loader: it has no __iter__, and cannot be called")
    return AnyIterable(loader)


def set_epoch(loader: Any, epoch: int) -> None:
    """Says the epoch to whatever in the loader asks for it, as a script would before each."""
    for each in (*_parts(loader), getattr(loader, "dataset", None)):
        if callable(getattr(each, "set_epoch", None)):
            each.set_epoch(epoch)


def _parts(loader: Any) -> list[Any]:
    """Returns the loader, its samplers, and those that they are made of."""
    waiting: list[Any] = [loader]
    found: list[Any] = []
    while waiting:
        each = waiting.pop(0)
        if each is not None and not any(each is other for other in found):
            found.append(each)
            waiting += [getattr(each, name, None) for name in ("batch_sampler", "sampler")]
    return found


def _stateful_parts(loader: Any) -> list[Any]:
    """Returns the dataset and those samplers that have a state, which skipping batches would not bring about."""
    parts = [getattr(loader, "dataset", None), *_parts(loader)[1:]]
    return [each for each in parts if hasattr(each, "state_dict") and not type(each).__module__.startswith("torchdata.")]


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None
