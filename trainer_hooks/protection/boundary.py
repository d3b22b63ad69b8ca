"""S_k as it is handed from the main thread, which has completed it, to the protect thread, which copies it away."""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from torch import Tensor

from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.clones import Clones
from deadpool.trainer_hooks.state.items import Held
from deadpool.trainer_hooks.state.metadata import Meta

_version = attrgetter("_version")


class Captured:
    """What is found out once about the tensors that a process holds, as long as they are the same ones.

    `shared`: the indices of the items that are copied from the user's own memory, while the next step runs; the others are
    cloned at the boundary, because they are volatile or among `written`.
    """

    def __init__(self, held: list[Held], written: Collection[str] = ()) -> None:
        self.held, self.written = held, written
        self.tensors = [each.tensor for each in held]
        self._cloned = [index for index, each in enumerate(held) if each.volatile or each.key in written]
        self._clones = Clones()
        cloned = set(self._cloned)
        self.shared = [index for index in range(len(held)) if index not in cloned]

    def is_of(self, held: list[Held], written: Collection[str]) -> bool:
        return self.held is held and self.written == written

    def sources(self) -> list[Tensor]:
        """Returns what to copy, as it is now."""
        sources = self.tensors.copy()
        for index in self._cloned:
            sources[index] = self._clones.of(index, sources[index])
        return sources

    def versions(self) -> list[int]:
        return list(map(_version, self.tensors))


@dataclass(slots=True, kw_only=True)
class Boundary:
    """`sources`: what to copy for each held item (a clone where it is not shared). `versions`: of the held tensors, at S_k.

    `watched`: the main thread waits for the copy (outside_writes.py). `copies`: over the slot, for each held item, once copied.
    """

    state: StateId
    captured: Captured
    sources: list[Tensor]
    versions: list[int]
    meta: Meta
    watched: bool = False
    copies: list[Tensor] | None = None
    copied: threading.Event = field(default_factory=threading.Event)  # the copy is done (CUDA: enqueued), or never will be
    settled: threading.Event = field(default_factory=threading.Event)  # the slot is sealed, or never will be by this state

    @property
    def held(self) -> list[Held]:
        return self.captured.held

    @property
    def shared(self) -> Sequence[int]:
        return self.captured.shared

    def touched(self) -> list[str]:
        """Returns the keys of the shared items whose version counters have moved since the state was complete."""
        now = self.captured.versions()
        if now == self.versions:
            return []
        return [self.held[index].key for index in self.shared if now[index] != self.versions[index]]

    def settle(self) -> None:
        self.copied.set()
        self.settled.set()
