"""The keyboard of a terminal, key by key; where there is none, nothing ever comes."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from deadpool.cli.live.dialogue import keys_in


class Keyboard:
    """`fd`: of a terminal that hands on each key, None without one."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def keys(self, timeout_s: float) -> list[str]:
        """Returns what was pressed, after `timeout_s` at most; nothing then."""
        if self._fd is None:
            time.sleep(timeout_s)
            return []
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return []
        data = os.read(self._fd, 1024)
        if not data:  # the terminal is gone
            raise KeyboardInterrupt
        return list(keys_in(data))


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Inside, keys come one by one and are not echoed; Ctrl-C interrupts as ever."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield Keyboard(None)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield Keyboard(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
