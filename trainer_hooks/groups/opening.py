"""Opening groups in a helper thread, so that a deadline, a cancellation or a break can walk away from it.

Connecting blocks inside torch until its own timeout when a peer does not come. An opening that was walked away from finds that
out when it ends, and gives back what it has opened; nobody else has seen it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from torch._C._distributed_c10d import PrefixStore, Store

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.groups.group import Group
from deadpool.trainer_hooks.groups.inner import InnerGroup, abort, open_group

log = logging.getLogger(__name__)
_POLL_S = 0.02


class Opening:
    """Opens `groups`, in this order, in `generation`, on `store`."""

    def __init__(self, groups: Sequence[Group], generation: int, store: Store, host: str, timeout_s: float) -> None:
        self._plan = [(group.membership, group.timeout.total_seconds()) for group in groups]
        self._generation = generation
        self._store = store
        self._host = host
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._abandoned = False
        self._ended = threading.Event()
        self._inners: list[InnerGroup] = []
        self._error: Exception | None = None

    def wait(self, cancelled: Callable[[], bool]) -> list[InnerGroup]:
        """Returns the open groups; UnavailableError when it failed, took too long or was cancelled."""
        daemons.run(self._run, f"opening of generation {self._generation}'s groups")
        while not self._ended.wait(_POLL_S):
            late = time.monotonic() > self._deadline_s
            if late or cancelled():
                with self._lock:
                    if self._ended.is_set():
                        break
                    self._abandoned = True
                why = f"not open after {self._timeout_s:.1f} s" if late else "cancelled"
                raise UnavailableError(f"groups of generation {self._generation}: {why}")
        if self._error is not None:
            raise UnavailableError(f"groups of generation {self._generation}: {self._error}") from self._error
        return self._inners

    def _run(self) -> None:
        began_s, opened = time.monotonic(), []
        try:
            for membership, timeout_s in self._plan:
                if self._abandoned:
                    raise UnavailableError("given up")
                store = PrefixStore(f"g{self._generation}/{membership.name}", self._store)
                self._inners.append(
                    open_group(membership, store, self._host, timeout_s, self._deadline_s, lambda: self._abandoned)
                )
                opened.append(f"{membership.name} {time.monotonic() - began_s:.3f}")
            log.info("generation %d: groups open after (s): %s", self._generation, ", ".join(opened))
        except Exception as error:
            self._error = error
        with self._lock:
            abandoned = self._abandoned
            self._ended.set()
        if abandoned or self._error is not None:
            log.info("opening of generation %d is given back: %s", self._generation, self._error or "nobody waits")
            inners, self._inners = self._inners, []
            abort(inners)
            for inner in inners:
                inner.release()
