"""Opening groups in a daemon thread, so that a deadline, a cancellation or a break can walk away from it.

Connecting blocks inside torch until its own timeout when a peer does not come. An opening that was walked away from finds that
out when it ends, and gives back what it has opened; nobody else has seen it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.groups.inner import InnerGroup, Membership, abort, open_group
from deadpool.trainer_hooks.torch_internals import PrefixStore, Store

log = logging.getLogger(__name__)
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A group to be opened. `name`: under which its members meet. `timeout_s`: of its operations."""

    name: str
    membership: Membership
    timeout_s: float


class Opening:
    """Opens groups in `generation`, on `store`.

    `held`: these are all that the process holds. Members may hold others: those that all of their members hold are opened, in
    the order of their names. Who has opened the default group, which is the first, knows what everybody holds.
    """

    def __init__(
        self, wanted: Sequence[Wanted], generation: int, store: Store, host: str, timeout_s: float, *, held: bool = False
    ) -> None:
        self._wanted = list(wanted)
        self._generation = generation
        self._store = store
        self._host = host
        self._timeout_s = timeout_s
        self._held = held
        self._deadline_s = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._abandoned = False
        self._ended = threading.Event()
        self._inners: dict[str, InnerGroup] = {}
        self._error: Exception | None = None

    def wait(self, cancelled: Callable[[], bool]) -> dict[str, InnerGroup]:
        """Returns the open groups by name; UnavailableError when it failed, took too long or was cancelled."""
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
        began_s = time.monotonic()
        try:
            for wanted in self._wanted_by_all() if self._held else self._wanted:
                self._open(wanted)
            log.info("generation %d: %s open after %.3f s", self._generation, ", ".join(self._inners), time.monotonic() - began_s)
        except Exception as error:
            self._error = error
        with self._lock:
            abandoned = self._abandoned
            self._ended.set()
        if abandoned or self._error is not None:
            log.info("opening of generation %d is given back: %s", self._generation, self._error or "nobody waits")
            inners, self._inners = list(self._inners.values()), {}
            abort(inners)
            for inner in inners:
                inner.release()

    def _wanted_by_all(self) -> list[Wanted]:
        """Opens the default group and returns the others that every member holds, in the order of their names."""
        held = {wanted.name: self._store_of(f"held/{wanted.name}") for wanted in self._wanted}
        for store in held.values():
            store.add("members", 1)
        others = sorted((each for each in self._wanted if each.membership.global_ranks), key=lambda each: each.name)
        for default in self._wanted:
            if not default.membership.global_ranks:
                self._open(default)
        return [each for each in others if held[each.name].add("members", 0) == each.membership.size]

    def _open(self, wanted: Wanted) -> None:
        if self._abandoned:
            raise UnavailableError("given up")
        self._inners[wanted.name] = open_group(
            wanted.membership,
            self._store_of(wanted.name),
            self._host,
            wanted.timeout_s,
            self._deadline_s,
            lambda: self._abandoned,
        )

    def _store_of(self, name: str) -> Store:
        return PrefixStore(f"g{self._generation}/{name}", self._store)
