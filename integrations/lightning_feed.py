"""The batches that Lightning's loop trains on, taken step by step, in the place of Lightning's own fetcher."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.utilities.combined_loader import _SUPPORTED_MODES
from torch.utils.data import DataLoader, IterableDataset

from deadpool.integrations.fetched import Fetched


class Feed:
    """In the place of Lightning's fetcher: takes a step's batches together, and hands them out one by one."""

    def __init__(self, loop: Any, fetcher: Any) -> None:
        self._loop, self.fetcher = loop, fetcher
        self.fetched, self.done = 0, False  # as Lightning's loops use them
        self.fetched_steps = Fetched(self._open)
        self._waiting: deque[tuple[Any, bool]] = deque()

    def setup(self, combined_loader: Any) -> None:
        self.fetcher.setup(combined_loader)

    def teardown(self) -> None:
        self.fetcher.teardown()

    def __iter__(self) -> "Feed":
        """The loader is opened when its first batch is drawn; until then it can say how long it is."""
        combined = self.fetcher.combined_loader
        if combined._iterator is None:
            combined._iterator = _SUPPORTED_MODES[combined._mode]["iterator"](combined.flattened, combined._limits)
        self.done = False
        return self

    def __next__(self) -> tuple[Any, int, int]:
        loop = self._loop
        if not self._waiting:
            place = (loop.epoch_progress.current.processed, loop.epoch_loop.batch_progress.current.ready)
            self._waiting.extend(self.fetched_steps.take(place, loop.trainer.accumulate_grad_batches))
            if not self._waiting:
                raise StopIteration
            loop.stepping.begin()
            self.fetched_steps.begun()
        batch, self.done = self._waiting.popleft()
        return batch, 0, 0

    def forget(self) -> None:
        """The step under way is discarded."""
        self._waiting.clear()

    def _open(self, epoch: int, first: int) -> Iterator[tuple[Any, bool]]:
        """Yields the batches of an epoch from this one on, each with whether it is the last."""
        loaders = self.fetcher.combined_loader.flattened
        for each in loaders:
            _set_sampler_epoch(each, epoch)
        skipped = first if len(loaders) == 1 and _can_skip(loaders[0]) else 0
        with _skipping(loaders[0], skipped):
            iter(self.fetcher)
        self.fetcher.fetched += skipped
        for number in count(skipped):
            try:
                batch = next(self.fetcher)[0]
            except StopIteration:
                return
            if number >= first:
                yield batch, self.fetcher.done
            if self.fetcher.done:
                return


def _can_skip(loader: Any) -> bool:
    """Returns whether the loader draws its batches by a sampler that it asks for them when it is opened."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return not isinstance(loader.dataset, IterableDataset) and loader.batch_sampler is not None


@contextmanager
def _skipping(loader: Any, batches: int) -> Iterator[None]:
    """What opens the loader in here gets all but its first batches."""
    if not batches:
        yield
        return
    sampler = loader.batch_sampler
    vars(loader)["batch_sampler"] = _Rest(sampler, batches)  # torch lets nobody assign it
    try:
        yield
    finally:
        vars(loader)["batch_sampler"] = sampler


class _Rest:
    """All but the first batches of a sampler, whose length is asked for nevertheless."""

    def __init__(self, sampler: Any, skipped: int) -> None:
        self._sampler, self._skipped = sampler, skipped

    def __iter__(self) -> Iterator[Any]:
        return islice(self._sampler, self._skipped, None)

    def __len__(self) -> int:
        return len(self._sampler)
