"""Which states become persistent checkpoints: agreed on through the generation's store, for a part alone is worth nothing.

S_k does, for k a multiple of --checkpoint-every, if at its commit every rank was done with the one before. The first rank that
learns of the commit decides for all. When one is asked for (SIGUSR1), rank 0 chooses the first state that finds every rank done,
and says so when it announces it: nobody knows that state as committed yet. Where ranks compare what they hold (--verify-every),
and have not done so in that state, it is the next one instead, which they compare first.
"""

from collections.abc import Callable

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.torch_internals import Store


class CheckpointAgreement:
    """One rank's part in it, in one generation. `store`: as for the commits. `idle`: nothing of this rank is being written.

    `wanted(step)`: S_step is to become a checkpoint, though nobody has asked.
    """

    def __init__(self, store: Store, world_size: int, wanted: Callable[[int], bool], idle: Callable[[], bool]) -> None:
        self._store, self._world_size, self._wanted, self._idle = store, world_size, wanted, idle
        self._number = 0  # of the next checkpoint of this generation
        self._told = False
        self._asked = False

    def ask(self) -> None:
        """Any thread, of rank 0."""
        self._asked = True

    def before_commit(self) -> bool:
        """Says, once, that this rank is ready for the next checkpoint. Returns whether the state about to be announced is to be
        one, because it was asked for. UnavailableError: store gone.
        """
        try:
            if not self._told and self._idle():
                self._told = True
                self._store.add(self._ready_key(), 1)
            return self._asked and self._store.add(self._ready_key(), 0) == self._world_size
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error

    def has_come(self, step: int, *, asked: bool) -> bool:
        """S_step is committed: returns whether it becomes a checkpoint. Every rank asks for every step, all hear the same.

        `asked`: rank 0 has chosen it.
        """
        if asked:
            self._asked = False
            self._next()
            return True
        if step == 0 or not self._wanted(step):
            return False
        try:
            ready = self._store.add(self._ready_key(), 0) == self._world_size
            verdict = self._store.compare_set(f"checkpoint/{step}", "", "yes" if ready else "no")
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error
        if bytes(verdict) != b"yes":
            return False
        self._next()
        return True

    def _next(self) -> None:
        self._number += 1
        self._told = False

    def _ready_key(self) -> str:
        return f"checkpoint/ready/{self._number}"
