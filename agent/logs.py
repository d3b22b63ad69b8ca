"""What the ranks print: one log file for each, and prefixed lines on the agent's own stdout and stderr.

The loop reads the pipes; two threads write (files, console), so that a slow disk or a stopped terminal delays neither beats nor
orders. When one of them is hopelessly behind, output is dropped, and that is said.
"""

import asyncio
import contextlib
import os
import queue
import threading
from collections import deque
from pathlib import Path

_READ_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 14
_QUEUED_MAX = 4096
_TAIL_LINES = 20
_PIPE_BUF = 4096


class Writer:
    """Writes to file descriptors in a thread of its own, in order."""

    def __init__(self, name: str) -> None:
        self._queue: queue.Queue[tuple[int, bytes] | None] = queue.Queue(_QUEUED_MAX)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(self, fd: int, data: bytes) -> None:
        """Writes soon; empty data closes the file."""
        if self._dropped and self._queue.qsize() < _QUEUED_MAX // 2:
            data = f"[deadpool: {self._dropped} pieces of output dropped]\n".encode() + data
            self._dropped = 0
        try:
            self._queue.put_nowait((fd, data))
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_s: float) -> None:
        """Writes what is left; gives up after the timeout."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            fd, data = piece
            if not data:
                os.close(fd)
            while data:
                try:
                    data = data[os.write(fd, data) :]
                except OSError:  # the disk is full, or the console is gone: the job goes on without
                    break


class Logs:
    """The logs of one node. `folder`: made if need be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.files = Writer("log-files")
        self.console = Writer("log-console")

    def open(self, name: str, prefix: str) -> "RankLog":
        return RankLog(self, name, prefix)

    def close(self, timeout_s: float) -> None:
        self.files.close(timeout_s)
        self.console.close(timeout_s)


class RankLog:
    """One process's output. `stdout_fd`, `stderr_fd`: for the process; closed here by `handed_over`.

    `prefix`: "" keeps the console quiet (a stand-in has no rank to be named by).
    """

    def __init__(self, logs: Logs, name: str, prefix: str) -> None:
        self._logs = logs
        self._path = logs.folder / name
        self._prefix = prefix.encode()
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._pipes: dict[int, tuple[int, bytearray]] = {}  # read end -> (console's descriptor, line begun)
        self._drained = asyncio.Event()
        self.stdout_fd = self._pipe(1)
        self.stderr_fd = self._pipe(2)

    def _pipe(self, console_fd: int) -> int:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        self._pipes[read_fd] = (console_fd, bytearray())
        asyncio.get_running_loop().add_reader(read_fd, self._readable, read_fd)
        return write_fd

    def handed_over(self) -> None:
        """The process has the write ends: ours would keep the pipes open for ever."""
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)

    def rename(self, name: str, prefix: str) -> None:
        """The stand-in plays a rank from now on. A log of that name stays as it is, this one then keeps its old name."""
        self._prefix = prefix.encode()
        path = self._logs.folder / name
        if not path.exists():
            self._path = self._path.rename(path)

    def tail(self) -> str:
        return b"\n".join(self._tail).decode(errors="replace")

    async def drained(self) -> None:
        """Returns once the pipes are at their end; never, as long as some child of the process holds them open."""
        await self._drained.wait()

    def close(self) -> None:
        """Once the process has ended: what its children still print is not read."""
        for read_fd in list(self._pipes):
            self._end(read_fd)
        self._logs.files.write(self._file, b"")

    def _readable(self, read_fd: int) -> None:
        try:
            data = os.read(read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._end(read_fd)
            return
        self._logs.files.write(self._file, data)
        console_fd, begun = self._pipes[read_fd]
        begun += data
        if b"\n" in data or len(begun) > _LINE_BYTES_MAX:
            *lines, rest = bytes(begun).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            begun[:] = rest
            self._lines(console_fd, lines)

    def _lines(self, console_fd: int, lines: list[bytes]) -> None:
        self._tail += lines
        if not self._prefix:
            return
        piece = b""
        for line in lines:  # pieces that a pipe takes whole: several agents write to the same console
            line = b"%b%b\n" % (self._prefix, line)
            if piece and len(piece) + len(line) > _PIPE_BUF:
                self._logs.console.write(console_fd, piece)
                piece = b""
            piece += line
        if piece:
            self._logs.console.write(console_fd, piece)

    def _end(self, read_fd: int) -> None:
        asyncio.get_running_loop().remove_reader(read_fd)
        os.close(read_fd)
        console_fd, begun = self._pipes.pop(read_fd)
        if begun:
            self._lines(console_fd, [bytes(begun)])
        if not self._pipes:
            self._drained.set()
