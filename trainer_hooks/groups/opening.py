"""Opening groups in a daemon thread, so that a deadline, a cancellation or a break can walk away from it.

All of a process's groups take one meeting: each process says where it listens for each of them, and waits until all have. Then
the groups are connected one after the other, without a wait in between for somebody who has not come yet.

Connecting blocks inside torch until its own timeout when a peer does not come. An opening that was walked away from finds that
out when it ends, and gives back what it has opened; nobody else has seen it.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.groups.inner import InnerGroup, Listener, Membership, abort, connect, listeners
from deadpool.trainer_hooks.groups.sockets import Address
from deadpool.trainer_hooks.torch_internals import PrefixStore, Store

log = logging.getLogger(__name__)
_POLL_S = 0.02
_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.05  # between two looks for the others: so long at least and at most, ...
_PAUSE_SHARE = 1 / 8  # ... and else this share of the wait until then
_ALL = "all are there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A group to be opened. `name`: under which its members meet. `timeout_s`: of its operations."""

    name: str
    membership: Membership
    timeout_s: float


class Opening:
    """Opens groups in `generation`, on `store`.

    `held`: these are all that the process holds, the default group among them. Members may hold others: those that all of their
    members hold are opened, in the order of their names, after the default group. Else the one group waits for its members.
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
            for wanted, listener, peers in self._met():
                self._inners[wanted.name] = connect(
                    wanted.membership,
                    listener,
                    peers,
                    self._store_of(wanted.name),
                    timeout_s=wanted.timeout_s,
                    deadline_s=self._deadline_s,
                )
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

    def _met(self) -> Iterator[tuple[Wanted, Listener, list[Address]]]:
        """Meets the other processes, and yields what to connect, in the same order on all of them, and where the peers listen."""
        ours = sorted(self._wanted, key=lambda each: (bool(each.membership.global_ranks), each.name))
        listening = listeners(self._host, len(ours))
        store: Any = PrefixStore(f"g{self._generation}", self._store)  # torch's stubs lack multi_set
        store.multi_set(
            [_key(wanted, wanted.membership.rank) for wanted in ours], [json.dumps(each.addresses) for each in listening]
        )
        for wanted in ours:
            if not (self._held and wanted.membership.global_ranks):
                self._meet(wanted)
        for wanted, listener in zip(ours, listening, strict=True):
            self._go_on()
            others = [_key(wanted, rank) for rank in range(wanted.membership.size) if rank != wanted.membership.rank]
            if not others:
                yield wanted, listener, []
            elif store.check(others):
                listed = [json.loads(each) for each in store.multi_get(others)]
                yield wanted, listener, [(host, port) for each in listed for host, port in each]

    def _meet(self, wanted: Wanted) -> None:
        """Waits until all members of the group have come to this.

        Asks again and again: a wait inside the store could not be given up, and a thread would stay behind.
        """
        store = self._store_of(wanted.name)
        if store.add("arrived", 1) == wanted.membership.size:
            store.set(_ALL, "")
        began_s = time.monotonic()
        while not store.check([_ALL]):
            self._go_on()
            time.sleep(min(max(_PAUSE_S, _PAUSE_SHARE * (time.monotonic() - began_s)), _PAUSE_S_MAX))

    def _go_on(self) -> None:
        """UnavailableError when nobody waits for the groups any more."""
        if self._abandoned or time.monotonic() > self._deadline_s:
            raise UnavailableError("not all members came")

    def _store_of(self, name: str) -> Store:
        return PrefixStore(f"g{self._generation}/{name}", self._store)


def _key(wanted: Wanted, rank: int) -> str:
    """Where a member of the group says on which addresses it listens for the others."""
    return f"{wanted.name}/listening/{rank}"
