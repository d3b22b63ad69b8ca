"""Waiting for keys of a generation's rendezvous store: without its own wait, which cannot be cancelled and logs its time-outs."""

import threading

from deadpool.host.errors import DeadpoolError, UnavailableError
from deadpool.trainer_hooks.torch_internals import Store

_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.25


class RefusedError(DeadpoolError):
    """Another rank cannot do its part in what the keys are about, and will not set its own."""


def wait_for(store: Store, keys: list[str], cancelled: threading.Event, *, or_refused: str | None = None) -> bool:
    """Returns True when the store has all keys, False when `cancelled` came first. UnavailableError when the store is gone.

    `or_refused`: a key whose presence means that some rank will not set its own of `keys`; RefusedError then.
    Looks again and again, less and less often.
    """
    pause_s = _FIRST_LOOK_S
    while not cancelled.is_set():
        try:
            if store.check(keys):
                return True
            if or_refused is not None and store.check([or_refused]):
                raise RefusedError(f"another rank has given up: {or_refused} is there")
        except RuntimeError as error:
            if cancelled.is_set():
                return False
            raise UnavailableError(f"rendezvous store: {error}") from error
        cancelled.wait(pause_s)
        pause_s = min(pause_s * 1.5, _LAST_LOOK_S)
    return False
