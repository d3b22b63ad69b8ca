"""One generation of this process's groups: is it broken, which works are in flight, which inner groups are open.

A generation breaks once: by an order, or because a collective failed by itself. From then on its works end without an error
whatever the inner works do, and its inner groups are aborted. A work, future or error that comes late finds its own generation
here, long broken, and never a newer one.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from deadpool.proto.call_record import CallRecord

log = logging.getLogger(__name__)
_POLL_S = 0.02


class PendingWork(Protocol):
    """A work that was handed out and whose inner work may still run."""

    def settle(self) -> None:
        """Ends the work for whoever waits for it, without an error."""

    def inner_ended(self) -> bool:
        """True once nothing will touch the work's tensors any more."""


class Abortable(Protocol):
    def abort(self) -> None: ...

    def release(self) -> None: ...


class Generation:
    """`number`: the job's generation. `broken` is read on every call, hence a plain attribute."""

    def __init__(self, number: int, on_broken: Callable[[int, str], None]) -> None:
        self.number = number
        self.broken = False
        self.inners: list[Abortable] = []
        self.pending: dict[int, PendingWork] = {}
        self._on_broken = on_broken
        self._lock = threading.Lock()

    def break_up(self, reason: str) -> bool:
        """Settles all works in flight and aborts all inner groups. Returns False when the generation was broken already."""
        with self._lock:
            if self.broken:
                return False
            self.broken = True
            inners = list(self.inners)
        log.info("generation %d breaks: %s", self.number, reason)
        for work in list(self.pending.values()):
            work.settle()
        for inner in inners:
            inner.abort()
        return True

    def fail(self, error: str) -> None:
        """A collective failed by itself: breaks the generation and reports it, once."""
        if self.break_up(error):
            self._on_broken(self.number, error)

    def add(self, inner: Abortable) -> bool:
        """Takes in a group that was opened; False (and the group is the caller's to abort) when the generation has broken."""
        with self._lock:
            if self.broken:
                return False
            self.inners.append(inner)
            return True

    def remove(self, inner: Abortable) -> None:
        """Aborts and frees one group that its user has destroyed. The caller no longer holds works of it that matter."""
        with self._lock:
            if inner not in self.inners:
                return
            self.inners.remove(inner)
        inner.abort()
        inner.release()

    def watch(self, work: PendingWork) -> None:
        """Keeps `work` until its inner work has ended; settles it at once when the generation broke meanwhile."""
        self.pending[id(work)] = work
        if self.broken:
            work.settle()

    def forget(self, work: PendingWork) -> None:
        self.pending.pop(id(work), None)

    def sweep(self) -> None:
        """Lets go of the works whose inner work has ended without anyone having waited for it."""
        for work in list(self.pending.values()):
            if work.inner_ended():
                self.forget(work)

    def is_quiet(self) -> bool:
        """True when no inner work runs: nothing of this generation will touch a tensor again."""
        self.sweep()
        return not self.pending

    def wait_until_quiet(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not self.is_quiet():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S / 10)
        return True

    def bury(self) -> None:
        """Frees the inner groups once all works have ended, in a thread of its own.

        Freeing a Gloo group joins its threads with the interpreter's lock held: with an operation that is stuck (until the
        group's timeout) it would stop the whole process.
        """

        def free() -> None:
            while not self.is_quiet():
                time.sleep(_POLL_S)
            with self._lock:
                inners, self.inners = self.inners, []
            for inner in inners:
                inner.release()

        threading.Thread(target=free, name=f"deadpool-bury-{self.number}", daemon=True).start()


class Calls:
    """Counts one group's calls of one generation, in the call record if there is one.

    Numbers start again with each generation, on every rank alike. A call that a break cuts off stays open in the record.
    """

    def __init__(self, record: CallRecord | None, row: int) -> None:
        self._record = record
        self._row = row
        self._entered = itertools.count(1)
        self._completed = itertools.count(1)
        if record is not None:
            record.entered(row, b"", 0)
            record.completed(row, 0)

    def enter(self, operation: bytes) -> None:
        number = next(self._entered)
        if self._record is not None:
            self._record.entered(self._row, operation, number)

    def complete(self) -> None:
        number = next(self._completed)
        if self._record is not None:
            self._record.completed(self._row, number)
