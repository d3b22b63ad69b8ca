"""How a rank learns that S_k is protected everywhere: counters in the generation's rendezvous store, off the critical path.

Each rank adds 1 to `commit/k` once its snapshot is sealed and its replicas are acknowledged; the last one sets `committed/k`, for
which the others look. No supervisor is involved, so a commit does not depend on it being there.
"""

import threading

from torch._C._distributed_c10d import Store

from deadpool.proto.errors import UnavailableError

_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.25


class CommitBoard:
    """One rank's view of the commits of one generation. `store`: a client of its own, used by the protect thread alone."""

    def __init__(self, store: Store, world_size: int, cancelled: threading.Event) -> None:
        self._store, self._world_size, self._cancelled = store, world_size, cancelled

    def announce(self, step: int) -> None:
        """This rank's S_step is protected. UnavailableError when the store is gone."""
        try:
            if self._store.add(f"commit/{step}", 1) == self._world_size:
                self._store.set(f"committed/{step}", "1")
                self._store.delete_key(f"commit/{step - 2}")
                self._store.delete_key(f"committed/{step - 2}")
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error

    def wait(self, step: int) -> bool:
        """Returns True when S_step is committed, False when the generation ended before. UnavailableError: store gone."""
        return wait_for(self._store, [f"committed/{step}"], self._cancelled)


def wait_for(store: Store, keys: list[str], cancelled: threading.Event) -> bool:
    """Returns True when the store has all keys, False when `cancelled` came first. UnavailableError when the store is gone.

    Looks again and again, less and less often. The store's own wait cannot be cancelled, and its time-outs are logged as errors.
    """
    pause_s = _FIRST_LOOK_S
    while not cancelled.is_set():
        try:
            if store.check(keys):
                return True
        except RuntimeError as error:
            if cancelled.is_set():
                return False
            raise UnavailableError(f"rendezvous store: {error}") from error
        cancelled.wait(pause_s)
        pause_s = min(pause_s * 1.5, _LAST_LOOK_S)
    return False
