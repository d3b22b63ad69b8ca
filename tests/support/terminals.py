"""A command on a terminal of 80 columns, as a person would have it: what is on it, and keys for it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")
_CLEARED = b"\x1b[2K"  # a painted frame begins with as many of these as the one before had lines


class Terminal:
    """`shown`: all that came so far, without colours and the movements of the cursor."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._fd = fd
        self._data = b""

    @property
    def shown(self) -> str:
        self._read()
        return _plain(self._data)

    @property
    def frame(self) -> str:
        """What was painted last."""
        self._read()
        return _plain(self._data[self._data.rfind(_CLEARED) :])

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # nothing has come (EAGAIN), or the command has ended (EIO)
                return
            if not data:
                return
            self._data += data


def _plain(data: bytes) -> str:
    return _ESCAPES.sub(b"", data).decode(errors="replace")


@contextmanager
def terminal(*command: str, environment: Mapping[str, str], folder: Path, lines: int = 40) -> Iterator[Terminal]:
    """Runs `python -m COMMAND`; it is ended at the end if it has not ended by itself."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    os.set_blocking(ours, False)
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
        env={**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.terminate()
        process.wait(60.0)
        os.close(ours)
