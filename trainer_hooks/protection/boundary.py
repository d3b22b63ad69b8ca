"""S_k as it is handed from the main thread, which has completed it, to the protect thread, which copies it away."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.state.items import Held
from deadpool.trainer_hooks.state.metadata import Meta


@dataclass(slots=True, kw_only=True)
class Boundary:
    """`sources`: what to copy for each held item (a clone where it is volatile). `versions`: of the held tensors, at S_k.

    `watched`: the main thread waits for the copy (outside_writes.py). `copies`: over the slot, for each held item, once copied.
    """

    state: StateId
    held: list[Held]
    sources: list[Tensor]
    versions: list[int]
    meta: Meta
    watched: bool = False
    copies: list[Tensor] | None = None
    copied: threading.Event = field(default_factory=threading.Event)  # the copy is done (CUDA: enqueued), or never will be
    settled: threading.Event = field(default_factory=threading.Event)  # the slot is sealed, or never will be by this state

    def shared(self) -> Iterator[int]:
        """Yields the indices of the items that are copied from the user's own memory, while the next step runs."""
        return (index for index, held in enumerate(self.held) if self.sources[index] is held.tensor)

    def touched(self) -> list[str]:
        """Returns the keys of those whose version counters have moved since the state was complete."""
        return [self.held[index].key for index in self.shared() if self.held[index].tensor._version != self.versions[index]]

    def settle(self) -> None:
        self.copied.set()
        self.settled.set()
