"""How long a process lives: as long as its parent, and what falls to it when a child of its dies (Linux's prctl)."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: what runs between fork and exec must not load anything


def become_subreaper() -> None:
    """Makes this process the parent of what its dead descendants leave running."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_at_parents_death(number: signal.Signals, parent: int) -> bool:
    """Has the kernel send this process that signal when its parent dies; returns False when `parent` is its parent no more.

    Then the parent died before this call, and no signal will come.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
