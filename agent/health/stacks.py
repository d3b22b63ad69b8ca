"""Saves the Python stacks of ranks that seem to hang: asks each by a signal (proto/stacks.py) and keeps what it has written."""

import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path

from deadpool.proto.stacks import STACKS_SIGNAL, stacks_path

_TIMEOUT_S = 3.0  # a process that gets no time to run answers nothing
_POLL_S = 0.01
_libc = ctypes.CDLL(None)


def save_stacks(pids: Mapping[int, int], vault_dir: Path, folder: Path, suffix: str) -> dict[int, Path]:
    """Returns, for each rank (rank -> pid) that has answered, the new file `folder`/stacks-rank-RANK-SUFFIX.txt. Blocks."""
    asked: dict[int, int] = {}  # rank -> size of its file before
    for rank, pid in pids.items():
        source = stacks_path(vault_dir, pid)
        if source.exists() and _catches(pid) and not is_stopped(pid):
            asked[rank] = source.stat().st_size
            _ask_main_thread(pid)
    saved: dict[int, Path] = {}
    deadline_s = time.monotonic() + _TIMEOUT_S
    for rank, before in asked.items():
        text = _answer(pids[rank], stacks_path(vault_dir, pids[rank]), before, deadline_s)
        if text:
            saved[rank] = folder / f"stacks-rank-{rank}-{suffix}.txt"
            saved[rank].write_bytes(text)
    return saved


def _ask_main_thread(pid: int) -> None:
    """Sends the signal to the process' first thread: faulthandler writes the stack of the thread that the signal reaches.

    One for the whole process goes to another thread whenever the first is not ready for it, as after a stop.
    """
    try:
        _libc.tgkill(pid, pid, STACKS_SIGNAL)
    except AttributeError:  # a libc without it: glibc before 2.30
        os.kill(pid, STACKS_SIGNAL)


def is_stopped(pid: int) -> bool:
    """Returns whether the process is stopped by a signal or a tracer."""
    return _status(pid).get("State", "")[:1] in ("T", "t")


def _catches(pid: int) -> bool:
    """Returns whether the process has a handler for the signal; without one it would die of it."""
    return _has_signal(_status(pid), "SigCgt")


def _has_signal(status: Mapping[str, str], *sets: str) -> bool:
    return any(int(status.get(name, "0"), 16) >> (STACKS_SIGNAL - 1) & 1 for name in sets)


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:  # it has ended, or there is no descriptor to look with
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _answer(pid: int, path: Path, before: int, deadline_s: float) -> bytes:
    """Returns what comes to the file behind `before`, once it is whole; nothing when nothing comes in time.

    While the signal waits for its handler it is pending, and while the handler writes it is blocked.
    """
    while time.monotonic() < deadline_s and (status := _status(pid)):
        if path.stat().st_size > before and not _has_signal(status, "SigPnd", "ShdPnd", "SigBlk"):
            break
        time.sleep(_POLL_S)
    return path.read_bytes()[before:]
