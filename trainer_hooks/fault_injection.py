"""Injected failures in the training process: noted on the link's thread, carried out in the step under way.

A failure that the agent injects in a given step is waited for in that step, so that where it happens does not depend on how soon
the agent of a busy machine looks.

The step is entered at optimizer.step, the one place in the script's step that is ours.
"""

import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from deadpool.proto.call_record import CallRecord

_SLOW_S = 0.2
_SLOW_STEPS = 10
_ROOM_BYTES = 64 << 20  # other threads go on allocating meanwhile
_HOLD_S = 5.0  # an agent that has not injected by then is not waited for
_LOOK_S = 0.001


class PendingInjections:
    """`lose_network()` breaks the connections of this process's groups."""

    def __init__(self, lose_network: Callable[[], None]) -> None:
        self._lose_network = lose_network
        self._waiting: deque[str] = deque()
        self._slow_steps = 0
        self._let_go: int | None = None  # the step in which the agent was waited for without success

    def add(self, kind: str) -> None:
        """Any thread."""
        if kind == "lose-network-briefly":
            self._lose_network()
        else:
            self._waiting.append(kind)

    def hold(self, record: CallRecord, step: int, over: threading.Event) -> None:
        """Main thread, in this step: returns when no injection waits for it, or for one before it. `over`: its generation is."""
        deadline_s = time.monotonic() + _HOLD_S
        while (held := record.held()) is not None and held <= step and held != self._let_go and not self._waiting:
            if over.wait(_LOOK_S):
                return
            if time.monotonic() >= deadline_s:
                self._let_go = held

    def in_step(self) -> None:
        """The main thread is in a step: whatever waits strikes now."""
        while self._waiting:
            match self._waiting.popleft():
                case "raise-rank":
                    raise RuntimeError(f"injected: raise-rank in process {os.getpid()}")
                case "oom-rank":
                    _run_out_of_memory()
                case "hang-rank":
                    threading.Event().wait()
                case "slow-rank":
                    self._slow_steps = _SLOW_STEPS
                case kind:
                    raise AssertionError(f"{kind} is not the trainer's")
        if self._slow_steps:
            self._slow_steps -= 1
            time.sleep(_SLOW_S)


def _run_out_of_memory() -> None:
    """Raises MemoryError, from an allocation that a limit refuses."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _ROOM_BYTES, before[1]))
    try:
        bytearray(16 * _ROOM_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
