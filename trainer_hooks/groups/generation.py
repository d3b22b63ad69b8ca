"""One generation of this process's groups: is it broken, which works are in flight, which inner groups are open.

A generation breaks once: by an order, or because a collective failed by itself. From then on its works end without an error
whatever the inner works do, and its inner groups are aborted. A work, future or error that comes late finds its own generation
here, long broken, and never a newer one.

A group in which no call is under way is not aborted: it may stay open in the next generation, if all its members find the same.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from deadpool.proto.call_record import CallRecord
from deadpool.trainer_hooks.groups.call_time import CallTime
from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.groups.inner import InnerGroup, abort
from deadpool.trainer_hooks.groups.ledger import Ledger

log = logging.getLogger(__name__)
_POLL_S = 0.002
_POLL_S_MAX = 0.5
# A call that all members have begun ends within it; one that some never begin is aborted then. As long as opening a group takes.
_DRAIN_S = 0.01
_SWEEP_AT = 64  # works in flight; a script may drop works without ever waiting for them


class PendingWork(Protocol):
    """A work that was handed out and whose inner work may still run. `calls`: of its group.

    `only_reads`: it never writes to a tensor, nor reads from one once its group's connections have ended.
    """

    calls: "Calls"
    operation: str
    only_reads: bool

    def settle(self) -> None:
        """Ends the work for whoever waits for it, without an error."""

    def inner_ended(self) -> bool:
        """True once the inner work will touch the tensors no more."""


class Generation:
    """`number`: the job's generation. `broken` is read on every call, hence a plain attribute."""

    def __init__(
        self,
        number: int,
        on_broken: Callable[[int, str], None],
        on_muted: Callable[[], None] = lambda: None,
        before_abort: Callable[[], None] = lambda: None,
        call_time: CallTime | None = None,
    ) -> None:
        self.number = number
        self.on_muted = on_muted  # before a work that the break has settled is taken for done by whoever waits for it
        self.broken = False
        self.call_time = call_time or CallTime()
        self._inners: dict[InnerGroup, Calls] = {}
        self.pending: dict[int, PendingWork] = {}
        self._on_broken, self._before_abort = on_broken, before_abort
        self._lock = threading.Lock()
        self._sweep_at = _SWEEP_AT
        self._ended_by_s = 0.0  # until then its works are waited for; 0: nobody waits

    def break_up(self, reason: str) -> bool:
        """Settles all works in flight and aborts all inner groups but those that may stay open.

        Returns False when the generation was broken already.
        """
        with self._lock:
            if self.broken:
                return False
            self.broken = True
            inners = list(self._inners)
        log.info("generation %d breaks: %s", self.number, reason)
        for work in list(self.pending.values()):
            work.settle()
        self._before_abort()
        self._abort_what_cannot_stay(inners)
        return True

    def _abort_what_cannot_stay(self, inners: list[InnerGroup]) -> None:
        staying = [inner for inner in inners if inner.may_stay]
        abort([inner for inner in inners if inner not in staying])
        if under_way := [inner for inner in staying if not inner.ledger.is_idle]:
            daemons.run(lambda: self._drain(under_way), f"end of calls of generation {self.number}")

    def _drain(self, inners: list[InnerGroup]) -> None:
        """Aborts these groups unless all their calls end soon."""
        deadline_s = time.monotonic() + _DRAIN_S
        while True:
            self._unended()  # nobody may ever wait for their works
            abort([inner for inner in inners if not inner.may_stay])
            inners = [inner for inner in inners if not inner.is_shut and not inner.ledger.is_idle]
            if not inners or time.monotonic() > deadline_s:
                break
            time.sleep(_POLL_S)
        for inner in inners:
            inner.shut_unless_idle()

    def lose_connections(self) -> None:
        """Ends all connections while the generation is live: its collectives fail by themselves."""
        with self._lock:
            inners = list(self._inners)
        for inner in inners:
            inner.shut()

    def fail(self, error: str) -> None:
        """A collective failed by itself: reports it, and breaks the generation.

        In this order: from the break on all calls are muted, and whoever has not heard of it by then would take the step in
        which that happens, and the next ones, for complete. A second thread that fails meanwhile reports it as well.
        """
        if not self.broken:
            self._on_broken(self.number, error)
            self.break_up(error)

    def add(self, inner: InnerGroup, calls: "Calls") -> None:
        """Takes in a group that was opened."""
        with self._lock:
            self._inners[inner] = calls
            broken = self.broken
        if broken:
            self._abort_what_cannot_stay([inner])

    def keep(self, kept: Collection[InnerGroup]) -> None:
        """These stay open, in a newer generation; all others of this broken one are aborted."""
        with self._lock:
            for inner in kept:
                self._inners.pop(inner, None)
            inners = list(self._inners)
        abort(inners)

    def remove(self, inner: InnerGroup, calls: "Calls") -> None:
        """Aborts a group that its user has destroyed, and frees it once its works have ended."""
        abort([inner])
        if self.broken:
            return  # it is freed with the others
        self._free_when(lambda: all(work.calls is not calls for work in self._unended()), [inner])

    def watch(self, work: PendingWork) -> None:
        """Keeps `work` until its inner work has ended; settles it immediately when the generation broke meanwhile."""
        self.pending[id(work)] = work
        if len(self.pending) > self._sweep_at:
            self._unended()
            self._sweep_at = 2 * len(self.pending) + _SWEEP_AT
        if self.broken:
            work.settle()

    def forget(self, work: PendingWork) -> None:
        """The inner work of `work` has ended."""
        self.pending.pop(id(work), None)

    def has_ended(self) -> bool:
        """True when no inner work runs: nothing of this generation will touch a tensor again."""
        return not self._unended()

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Returns whether no work of the broken generation touches a tensor any more; what was aborted ends in milliseconds.

        Gloo can lose a send whose peer is gone (sockets.py): it is stuck until its timeout, and nobody needs to wait for it. Who
        asks again waits no longer than the first time: what else is stuck is stuck.
        """
        self._ended_by_s = self._ended_by_s or time.monotonic() + timeout_s
        while (unended := self._unended()) and not self._only_read(unended):
            if time.monotonic() > self._ended_by_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _only_read(self, works: list[PendingWork]) -> bool:
        """Whether these works only read, and Gloo has closed the connections by which they would."""
        with self._lock:
            closed = [calls for inner, calls in self._inners.items() if inner.has_ended]
        return all(work.only_reads and work.calls in closed for work in works)

    def pending_operations(self) -> list[str]:
        return [work.operation for work in self._unended()]

    def let_go(self) -> None:
        """Frees the inner groups of a broken generation that were aborted, once all works have ended."""
        with self._lock:
            inners = [inner for inner in self._inners if inner.is_shut]
        self._free_when(self.has_ended, inners)

    def _unended(self) -> list[PendingWork]:
        """The works whose inner work runs; lets go of the others, also where nobody has waited for them."""
        return [work for work in list(self.pending.values()) if not work.inner_ended()]

    def _free_when(self, ended: Callable[[], bool], inners: list[InnerGroup]) -> None:
        """Frees in a thread of its own: freeing a Gloo group joins its threads with the interpreter's lock held.

        With an operation that is stuck (until the group's timeout) it would stop the whole process.
        """

        def free() -> None:
            wait_s = _POLL_S
            while not ended():
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _POLL_S_MAX)
            with self._lock:
                for inner in inners:
                    self._inners.pop(inner, None)
            for inner in inners:
                inner.release()

        daemons.run(free, f"freeing of generation {self.number}'s groups")


class Calls:
    """Counts one group's calls of one generation, in the call record if there is one. `place`: (rank, size) in the group.

    `ledger`: of the open group, which may be older than that. Numbers start again with each generation, on every rank alike. A
    call that a break cuts off stays open in the record.
    """

    def __init__(self, record: CallRecord | None, row: int, place: tuple[int, int], call_time: CallTime, ledger: Ledger) -> None:
        self.ledger = ledger
        self.place = place
        self.call_time = call_time
        self._record = record
        self._row = row
        self._entered = itertools.count(1)
        self._completed = itertools.count(1)
        if record is not None:
            record.entered(row, b"", 0)
            record.completed(row, 0)

    def enter(self, operation: bytes) -> None:
        self.ledger.begin()
        number = next(self._entered)
        self.call_time.entered()
        if self._record is not None:
            self._record.entered(self._row, operation, number)

    def complete(self, *, on_device: bool = False) -> None:
        """`on_device`: the host has been through with the call long before (CallTime)."""
        number = next(self._completed)
        if not on_device:
            self.call_time.completed()
        if self._record is not None:
            self._record.completed(self._row, number)
