"""The batches that a framework's loop draws from a loader, so that a step done again gets the same ones, in whatever process.

    place of a batch: (epoch, number in it) --kept?--> the batches of the last steps, and the generators after drawing them
                                            --else--> the iterator; in a new process one that was moved there

A loader may draw from the process's random generators: an order when an epoch begins, augmentation with each batch, some of it
one batch ahead. Here it draws what it draws without DeadPool, so that a framework's training is the same with it and without.
(guard.steps, whose loop is new to the script, gives each batch random numbers of its own, and can skip any loader's batches.) So
the state holds the generators as they were when the epoch was opened and before the last step's batches were drawn, and what
those batches were: a new process draws these once more and sees whether they are the same.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from deadpool.trainer_hooks.drill.digests import leaves
from deadpool.trainer_hooks.state import random_state

log = logging.getLogger(__name__)
Place = tuple[int, int]  # (epoch, batch)
_STEPS_KEPT = 3


class Fetched:
    """Registered as an extra: where the last step's batches lay, and what a new process needs to find the next ones.

    `open_at(epoch, batch)` returns an iterator over the epoch's batches from that one on, without communicating.
    """

    def __init__(self, open_at: Callable[[int, int], Iterator[Any]]) -> None:
        self._open_at = open_at
        self._iterator: Iterator[Any] = iter(())
        self._stands: tuple[Place, str] | None = None  # where the iterator does, and the digest of the state that led there
        self._kept: dict[tuple[Place, str], tuple[list[Any], dict[str, Any]]] = {}  # by place and digest of the generators
        self._state: dict[str, Any] = {}
        self._taken: tuple[dict[str, Any], dict[str, Any]] | None = None

    def take(self, place: Place, count: int, fresh: Iterator[Any] | None = None) -> list[Any]:
        """Returns the `count` batches from `place` on, fewer where the epoch ends. `fresh`: an unused iterator of the epoch.

        The random generators and the state change with `begun()`, so that S_k is what it was before step k's batches were drawn.
        """
        before = random_state.capture()
        known = (place, _digest(before)) in self._kept
        if not known:
            if place[1] == 0:
                self._iterator = self._open_at(*place) if fresh is None else fresh
            elif self._stands != (place, _digest(self._state)):
                self._iterator = self._moved(place)
                random_state.restore(before)
            self._keep(place, before, list(islice(self._iterator, count)))
        batches, after = self._kept[place, _digest(before)]
        opened = before if place[1] == 0 else self._state.get("opened", before)
        state = {"opened": opened, "before": before, "place": list(place), "digest": _digest(batches)}
        if not known:
            self._stands = (place[0], place[1] + count), _digest(state)
        self._taken = state, after
        random_state.restore(before)
        return batches

    def begun(self) -> None:
        """The step that the batches were taken for has begun."""
        assert self._taken is not None
        self._state, after = self._taken
        random_state.restore(after)

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state

    def _keep(self, place: Place, before: dict[str, Any], batches: list[Any]) -> None:
        self._kept[place, _digest(before)] = batches, random_state.capture()
        while len(self._kept) > _STEPS_KEPT:
            del self._kept[next(iter(self._kept))]

    def _moved(self, place: Place) -> Iterator[Any]:
        """Returns an iterator at this place, as the predecessor had it. Disturbs the random generators."""
        epoch, end = place
        first = self._state["place"][1] if self._state else 0
        if not self._state or self._state["place"][0] != epoch or not first < end:
            iterator = self._open_at(epoch, end)  # for a rehearsal, or as the framework itself resumes
            return chain(list(islice(iterator, 1)), iterator)  # what opening draws is no part of the step
        for skip in (first - 1, 0) if first else (0,):  # by the sampler; if that gives others, by drawing all of them
            random_state.restore(self._state["opened"])
            iterator = self._open_at(epoch, skip)
            for _ in islice(iterator, first - skip):
                pass
            random_state.restore(self._state["before"])
            batches = list(islice(iterator, end - first))
            if _digest(batches) == self._state["digest"]:
                self._keep((epoch, first), self._state["before"], batches)
                return iterator
        log.error(
            "the loader does not give batch %d of epoch %d again: what it draws depends on more than the random generators of "
            "python, numpy and torch; from here on the data are not those of the unbroken run", first, epoch
        )  # fmt: skip
        return iterator


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(list(leaves(value))).encode(), digest_size=8).hexdigest()
