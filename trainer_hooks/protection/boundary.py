"""S_k as it is handed from the main thread, which has completed it, to the protect thread, which copies it away."""

import threading
from dataclasses import dataclass, field

from torch import Tensor

from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.state.items import Held
from deadpool.trainer_hooks.state.metadata import Meta


@dataclass(slots=True, kw_only=True)
class Boundary:
    """`sources`: what to copy for each held item (a clone where it is volatile). `versions`: of the held tensors, at S_k."""

    state: StateId
    held: list[Held]
    sources: list[Tensor]
    versions: list[int]
    meta: Meta
    copied: threading.Event = field(default_factory=threading.Event)  # the copy is done (CUDA: enqueued), or never will be
    settled: threading.Event = field(default_factory=threading.Event)  # the slot is sealed, or never will be by this state

    def unchanged(self) -> bool:
        """Returns whether the steady tensors are as they were when the state was complete."""
        pairs = zip(self.held, self.versions, strict=True)
        return all(held.volatile or held.tensor._version == version for held, version in pairs)

    def settle(self) -> None:
        self.copied.set()
        self.settled.set()
