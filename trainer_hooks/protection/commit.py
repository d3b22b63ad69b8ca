"""How a rank learns that S_k is protected everywhere, or cannot be: the generation's rendezvous store, off the critical path.

Each rank adds 1 to `commit/k` once its snapshot is sealed and its replicas are acknowledged; the last one sets `verdict/k`, for
which the others look. A rank that cannot protect S_k sets `verdict/k` instead: it never adds its 1, so there is one verdict. No
supervisor is involved, so a commit does not depend on it being there.
"""

import threading
from enum import Enum

from torch._C._distributed_c10d import Store

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.store_wait import wait_for

_ASKED = 1 << 32  # added to the count by the rank that wants a checkpoint of the state


class Outcome(Enum):
    """What has become of a state."""

    COMMITTED = b"committed"
    CHECKPOINT = b"checkpoint"  # committed, and to become a persistent checkpoint: one was asked for
    REFUSED = b"refused"


def verdict_key(step: int) -> str:
    return f"verdict/{step}"


class CommitBoard:
    """One rank's view of the commits of one generation. `store`: a client of its own, used by the protect thread alone."""

    def __init__(self, store: Store, world_size: int, cancelled: threading.Event) -> None:
        self._store, self._world_size, self._cancelled = store, world_size, cancelled

    def announce(self, step: int, *, checkpoint: bool = False) -> None:
        """This rank's S_step is protected; `checkpoint`: and it wants it kept. UnavailableError when the store is gone."""
        try:
            asked, count = divmod(self._store.add(f"commit/{step}", 1 + _ASKED * checkpoint), _ASKED)
            if count == self._world_size:
                outcome = Outcome.CHECKPOINT if asked else Outcome.COMMITTED
                self._store.set(verdict_key(step), outcome.value)  # type: ignore[arg-type]
                self._store.delete_key(f"commit/{step - 2}")
                self._store.delete_key(verdict_key(step - 2))
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error

    def refuse(self, step: int) -> None:
        """This rank cannot protect S_step: nobody need wait for its commit. UnavailableError when the store is gone."""
        try:
            self._store.set(verdict_key(step), Outcome.REFUSED.value)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error

    def wait(self, step: int) -> Outcome | None:
        """Returns what has become of S_step; None when the generation ended before that was known.

        UnavailableError: store gone.
        """
        if not wait_for(self._store, [verdict_key(step)], self._cancelled):
            return None
        try:
            return Outcome(bytes(self._store.get(verdict_key(step))))
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error
