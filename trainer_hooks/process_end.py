"""How a rank's process ends: none of our threads is inside torch while the interpreter goes down.

While it finalizes, CPython (to 3.13) ends a thread that asks for its lock by pthread_exit. That is an unwinding which no C++
destructor that promises not to throw lets pass, and pybind gives the lock back in such destructors: std::terminate, SIGABRT. So
the exit waits until our threads have let go of torch. One that is stuck there may come back at any later moment; what it uses
is held by its own frames, which are never freed, and in place of aborting the process it sleeps.
"""

import ctypes
import logging
import signal
import threading
from collections.abc import Iterable

from deadpool.trainer_hooks.groups.daemon_threads import DaemonThreads

log = logging.getLogger(__name__)
THREADS_TIMEOUT_S = 2.0
EXIT_TIMEOUT_S = 20  # with a stuck thread: of the interpreter's end


def wait_for_threads(daemons: DaemonThreads, others: Iterable[threading.Thread], timeout_s: float = THREADS_TIMEOUT_S) -> None:
    """Waits until these threads have let go of torch, `timeout_s` for each; prepares the process's end for those that do not."""
    stuck = daemons.wait_until_ended(timeout_s)
    for thread in others:
        thread.join(timeout_s)
        if thread.is_alive():
            stuck.append(thread.name)
    if stuck:
        log.warning("stuck at exit: %s", ", ".join(stuck))
        sleep_in_place_of_abort()


def sleep_in_place_of_abort() -> None:
    """From here on a thread that std::terminate would let abort the process sleeps instead.

    For the end of a process only: should the main thread be the one, SIGALRM ends the process in EXIT_TIMEOUT_S.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(EXIT_TIMEOUT_S)
    set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE  # std::set_terminate(void (*)())
    set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
    set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
