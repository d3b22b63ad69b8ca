"""What can be seen from outside of ranks that do not get on: for the message of a test that gives up."""

import ctypes
import signal
from collections.abc import Mapping
from pathlib import Path

_libc = ctypes.CDLL(None)


def ask_main_threads(pids: Mapping[int, int]) -> None:
    """Sends SIGUSR1 to the main threads of these ranks (rank -> pid), which faulthandler.register has made write their stacks."""
    for pid in pids.values():
        _libc.tgkill(pid, pid, signal.SIGUSR1)  # to the process it might reach another thread


def threads_of(pids: Mapping[int, int]) -> str:
    """Returns a line for each thread of these ranks (rank -> pid): its name, state, and in which call it is in the kernel."""
    return "\n".join(line for rank, pid in sorted(pids.items()) for line in _lines(rank, Path(f"/proc/{pid}/task")))


def _lines(rank: int, tasks: Path) -> list[str]:
    try:
        threads = sorted(tasks.iterdir(), key=lambda task: int(task.name))
    except OSError:
        return [f"rank {rank} is gone"]
    return [
        f"rank {rank} thread {task.name} {_read(task / 'comm')}: {_state(task)} in {_read(task / 'wchan')}, "
        f"syscall {_read(task / 'syscall')}"
        for task in threads
    ]


def _state(task: Path) -> str:
    return _read(task / "stat").rpartition(")")[2][1:2]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:  # the thread has ended, or one must be root for it
        return f"({error.strerror})"
