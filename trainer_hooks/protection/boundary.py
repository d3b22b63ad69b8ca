"""S_k as it is handed from the main thread, which has completed it, to the protect thread, which copies it away."""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy
from numpy.typing import NDArray
from torch import Tensor

from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.clones import Clones
from deadpool.trainer_hooks.protection.copy_engine import Point
from deadpool.trainer_hooks.state.items import Held
from deadpool.trainer_hooks.state.metadata import Meta

_version = attrgetter("_version")


class Moment(threading.Event):
    """An event that knows when it came first."""

    at_s = 0.0  # monotonic; 0 while it has not come

    def set(self) -> None:
        if not self.is_set():
            self.at_s = time.monotonic()
        super().set()


class Captured:
    """What is found out once about the tensors that a process holds, as long as they are the same ones.

    `shared`: the indices of the items that are copied from the user's own memory, while the next step runs; the others, `cloned`,
    are cloned at the boundary, because they are volatile or among `written`. `addresses`: of the held tensors' memory, uint64.
    They are true at a boundary: whoever gives the same list of held tensors again has found them in the same memory
    (Inventory.is_still_true). A storage may get other memory in the step that follows: `Boundary.touched` sees it.
    """

    def __init__(self, held: list[Held], written: Collection[str] = ()) -> None:
        self.held, self.written = held, written
        self.tensors = [each.tensor for each in held]
        self.cloned = [index for index, each in enumerate(held) if each.volatile or each.key in written]
        self._clones = Clones()
        self.is_shared = numpy.ones(len(held), dtype=bool)
        self.is_shared[self.cloned] = False
        self.shared: list[int] = numpy.flatnonzero(self.is_shared).tolist()
        self.addresses = self.addresses_now()

    def is_of(self, held: list[Held], written: Collection[str]) -> bool:
        return self.held is held and self.written == written

    def sources(self) -> list[Tensor]:
        """Returns what to copy, as it is now."""
        sources = self.tensors.copy()
        for index in self.cloned:
            sources[index] = self._clones.of(index, sources[index])
        return sources

    def addresses_now(self) -> NDArray[numpy.uint64]:
        return numpy.fromiter(map(Tensor.data_ptr, self.tensors), numpy.uint64, len(self.tensors))

    def versions(self) -> NDArray[numpy.int64]:
        """Returns the held tensors' version counters, as they are now."""
        return numpy.fromiter(map(_version, self.tensors), numpy.int64, len(self.tensors))


@dataclass(slots=True, kw_only=True)
class Boundary:
    """`sources`: what to copy for each held item (a clone where it is not shared). `versions`: of the held tensors, at S_k.

    `point`: where it was complete (copy_engine.py). `watched`: the main thread waits for the copy (outside_writes.py). `copies`,
    where it is watched: over the slot, for each held item, once copied.
    """

    state: StateId
    captured: Captured
    sources: list[Tensor]
    versions: NDArray[numpy.int64]
    meta: Meta
    point: Point = None
    watched: bool = False
    copies: Sequence[Tensor] | None = None
    submitted_s: float = field(default_factory=time.monotonic)
    needed_s: float = 0.0  # when a step first asked for its copy to be done; 0: none has
    begun_s: float = 0.0  # when its protection has begun; 0: it has not
    copied: Moment = field(default_factory=Moment)  # the copy is done (CUDA: enqueued), or never will be
    settled: Moment = field(default_factory=Moment)  # the slot is sealed, or never will be by this state

    @property
    def held(self) -> list[Held]:
        return self.captured.held

    @property
    def shared(self) -> Sequence[int]:
        return self.captured.shared

    def touched(self) -> list[str]:
        """Returns the keys of the shared items whose version counters, or memory, have moved since the state was complete."""
        captured = self.captured
        versions, addresses = captured.versions(), captured.addresses_now()
        if versions.tobytes() == self.versions.tobytes() and addresses.tobytes() == captured.addresses.tobytes():
            return []
        moved = ((versions != self.versions) | (addresses != captured.addresses)) & captured.is_shared
        return [self.held[index].key for index in numpy.flatnonzero(moved)]

    def stall_s(self) -> float:
        """Returns how long the step would have waited for the copy if that had begun when the state was complete."""
        if not (self.needed_s and self.begun_s and self.copied.at_s):
            return 0.0
        return max(0.0, (self.copied.at_s - self.begun_s) - (self.needed_s - self.submitted_s))

    def settle(self) -> None:
        self.copied.set()
        self.settled.set()
