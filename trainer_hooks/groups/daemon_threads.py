"""Threads for waits that may get stuck: daemons, used again, as many as needed.

concurrent.futures would join its threads when the interpreter ends, and a stuck one would keep the process. A daemon, however,
must not be inside torch while the interpreter goes down (process_end.py): `wait_until_ended` says who is.
"""

import itertools
import queue
import threading
from collections.abc import Callable

Task = Callable[[], object]
_IDLE_S = 5.0


class DaemonThreads:
    """Thread-safe. An idle thread holds nothing of the tasks that it has run."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[int, Task]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)  # threads that have promised to take a task
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._running: dict[int, str] = {}  # tasks that the end of the process waits for

    def run(self, task: Task, what: str, *, in_torch: bool = True) -> None:
        """Runs `task`, which must not raise, in a thread immediately, however many run already.

        `what`: in the log, when it does not end. `in_torch` False: it only uses what may be cut off at any moment.
        """
        number = next(self._numbers)
        if in_torch:
            with self._changed:
                self._running[number] = what
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="deadpool-daemon", daemon=True).start()
        self._tasks.put((number, task))

    def wait_until_ended(self, timeout_s: float) -> list[str]:
        """Waits for the tasks in torch; returns what those do that still run then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout_s)
            return list(self._running.values())

    def _work(self) -> None:
        while self._run_one():
            self._idle.release()

    def _run_one(self) -> bool:
        """Runs the next task; returns False when none came and nobody relies on this thread.

        A function of its own: what the task holds (a work of c10d, whose end is inside torch) is freed before it counts as ended.
        """
        taken = self._take()
        if taken is None:
            return False
        number, task = taken
        del taken
        task()
        del task
        with self._changed:
            self._running.pop(number, None)
            self._changed.notify_all()
        return True

    def _take(self) -> tuple[int, Task] | None:
        try:
            return self._tasks.get(timeout=_IDLE_S)
        except queue.Empty:
            if self._idle.acquire(blocking=False):
                return None  # the promise is taken back
            return self._tasks.get()  # someone relies on it: the task is on its way


daemons = DaemonThreads()  # this process's
