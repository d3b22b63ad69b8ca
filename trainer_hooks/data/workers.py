"""The random numbers of a DataLoader's workers: set before each batch, by its number in the epoch.

A worker is started with a seed and draws on from there, so its numbers depend on how many batches it has made. After a recovery
new workers begin in the middle of an epoch.
"""

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from deadpool.trainer_hooks.data.streams import mixed, set_all


class WorkerStreams:
    """Stands in the place of a loader's collate_fn and worker_init_fn. Copied into each worker when that starts.

    The batches of an epoch are the workers' in turn, from the one with which the iterator began. A worker that lives on into the
    next epoch (persistent_workers) knows its length, and that there the turn begins with the first worker again.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._collate, self._init = loader.collate_fn, loader.worker_init_fn
        self._seed = self._epoch = self._number = self._turn = 0
        self._batches: int | None = None
        loader.collate_fn = self.collate
        loader.worker_init_fn = self.start

    def begins(self, seed: int, epoch: int, first: int, *, turn: int, batches: int | None) -> None:
        """The next iterator begins with batch `first`, which worker `turn` makes. `batches`: of an epoch, where that is known."""
        self._seed, self._epoch, self._number, self._turn, self._batches = seed, epoch, first, turn, batches

    def start(self, worker: int) -> None:
        """In the worker, before its first batch."""
        init: Callable[[int], None] | None = self._init
        if init is not None:
            init(worker)
        info = get_worker_info()
        assert info is not None
        self._number += (worker - self._turn) % info.num_workers
        self._set()

    def collate(self, samples: Any) -> Any:
        """In the worker (or in the process itself, if there are none): the samples of a batch are there."""
        batch = self._collate(samples)
        worker = get_worker_info()
        if worker is not None:
            self._number += worker.num_workers
            self._set()
        return batch

    def _set(self) -> None:
        worker = get_worker_info()
        assert worker is not None
        if self._batches is not None and self._number >= self._batches:
            self._epoch, self._number = self._epoch + 1, worker.id
        set_all(mixed(self._seed, self._epoch, "worker", self._number))
