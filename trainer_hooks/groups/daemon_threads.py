"""Threads for waits that may get stuck: daemons, used again, as many as needed.

concurrent.futures would join its threads when the interpreter ends, and a stuck one would keep the process.
"""

import queue
import threading
from collections.abc import Callable

_tasks: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
_idle = threading.Semaphore(0)  # threads that have promised to take a task
_IDLE_S = 5.0


def run_aside(task: Callable[[], None]) -> None:
    """Runs `task`, which must not raise, in a thread at once, however many run already."""
    if _idle.acquire(blocking=False):
        _tasks.put(task)
    else:
        threading.Thread(target=_work, args=(task,), name="deadpool-aside", daemon=True).start()


def _work(task: Callable[[], None] | None) -> None:
    while task is not None:
        task()
        _idle.release()
        task = _next()


def _next() -> Callable[[], None] | None:
    try:
        return _tasks.get(timeout=_IDLE_S)
    except queue.Empty:
        if _idle.acquire(blocking=False):
            return None  # the promise is taken back
        return _tasks.get()  # someone relies on it: the task is on its way
