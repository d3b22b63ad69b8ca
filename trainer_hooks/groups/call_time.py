"""For how long a process has had calls under way: what is left of a step is the rank's own part of it (stragglers).

Calls that end on the host are timed by it. Of calls that end on a device the host only learns that they have ended, long after;
there marks on its streams say when its computation has come to a wait and got out of it. They are read once the device is past
them: nothing waits for that, and what is read is a step old.
"""

import math
import threading
import time

from deadpool.trainer_hooks.device import Device, Mark


class CallTime:
    """Whichever group a call is of; whatever the process has computed meanwhile. `device`: on which calls may end.

    `known`: not for calls that end on a device which is not given here.
    """

    def __init__(self, device: Device | None = None) -> None:
        self.known = True
        self._device = device
        self._lock = threading.Lock()
        self._under_way = 0
        self._since_ns = self._total_ns = 0
        self._origin: Mark | None = None  # of the device's times; reached
        self._until_s = -math.inf  # since then; all before it is counted
        self._spans: list[tuple[Mark, Mark]] = []

    def entered(self) -> None:
        with self._lock:
            if self._under_way == 0:
                self._since_ns = time.monotonic_ns()
            self._under_way += 1

    def completed(self) -> None:
        with self._lock:
            self._under_way -= 1
            if self._under_way == 0:
                self._total_ns += time.monotonic_ns() - self._since_ns

    def mark(self) -> Mark | None:
        """Returns where the calling thread's stream is now; None where nobody asks."""
        if self._device is None:
            self.known = False
            return None
        return self._device.mark(timed=True)

    def waited(self, begin: Mark | None) -> None:
        """Since `begin` the calling thread's stream has waited for a call, or a call was under way, until now."""
        if begin is not None and self._device is not None:
            span = begin, self._device.mark(timed=True)
            with self._lock:
                self._spans.append(span)

    def total_ns(self) -> int:
        with self._lock:
            self._count_spans()
            return self._total_ns + (time.monotonic_ns() - self._since_ns if self._under_way else 0)

    def _count_spans(self) -> None:
        """Adds what the device is past by now; calls that overlap count once."""
        past = [span for span in self._spans if span[1].reached()]
        if not past:
            return
        self._spans = [span for span in self._spans if span not in past]
        origin = self._origin or past[0][0]
        times_s = sorted((begin.since_s(origin), end.since_s(origin), end) for begin, end in past)
        for begin_s, end_s, _ in times_s:
            self._total_ns += round(1e9 * max(0.0, end_s - max(begin_s, self._until_s)))
            self._until_s = max(self._until_s, end_s)
        self._origin, moved_s = times_s[-1][2], times_s[-1][1]
        self._until_s -= moved_s  # a device's clock is exact over short times only
