"""Which states become persistent checkpoints: agreed on through the generation's store, for a part alone is worth nothing.

S_k does, for k a multiple of `every`, if at its commit every rank was done with the one before. The first rank that learns of
the commit decides for all.
"""

from collections.abc import Callable

from torch._C._distributed_c10d import Store

from deadpool.proto.errors import UnavailableError


class Turn:
    """One rank's part in it, in one generation. `store`: as for the commits. `idle`: nothing of this rank is being written."""

    def __init__(self, store: Store, world_size: int, every: int, idle: Callable[[], bool]) -> None:
        self._store, self._world_size, self._every, self._idle = store, world_size, every, idle
        self._number = 0  # of the next checkpoint of this generation
        self._told = False

    def before_commit(self) -> None:
        """Says, once, that this rank is ready for the next checkpoint. UnavailableError: store gone."""
        if not self._told and self._idle():
            self._told = True
            try:
                self._store.add(self._ready_key(), 1)
            except RuntimeError as error:
                raise UnavailableError(f"rendezvous store: {error}") from error

    def has_come(self, step: int) -> bool:
        """S_step is committed: returns whether it becomes a checkpoint. Every rank asks for every step, all hear the same."""
        if step % self._every or step == 0:
            return False
        try:
            ready = self._store.add(self._ready_key(), 0) == self._world_size
            verdict = self._store.compare_set(f"checkpoint/{step}", "", "yes" if ready else "no")
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error
        if bytes(verdict) != b"yes":
            return False
        self._number += 1
        self._told = False
        return True

    def _ready_key(self) -> str:
        return f"checkpoint/ready/{self._number}"
