"""What the ranks print: one log file for each, and prefixed lines on the agent's own stdout and stderr.

The loop reads the pipes; two threads write (files, console), so that a slow disk or a stopped terminal delays neither heartbeats
nor orders. When one of them is hopelessly behind, output is dropped, and that is said.
"""

import asyncio
import contextlib
import itertools
import os
import queue
import shutil
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deadpool.agent.logs.routing import LogRoutes
from deadpool.host.text import printable

_READ_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 14
_QUEUED_MAX = 4096
_TAIL_LINES = 20
_PIPE_BUF = 4096


class LogWriter:
    """Carries out writes in a thread of its own, in order. `problem`: why the last one failed, "" when it did not."""

    def __init__(self, name: str) -> None:
        self._queue: queue.Queue[tuple[Callable[[bytes], None], bytes] | None] = queue.Queue(_QUEUED_MAX)
        self._dropped = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(self, sink: Callable[[bytes], None], data: bytes) -> None:
        """Calls `sink(data)` soon."""
        if self._dropped and self._queue.qsize() < _QUEUED_MAX // 2:
            data = f"[deadpool: {self._dropped} pieces of output dropped]\n".encode() + data
            self._dropped = 0
        try:
            self._queue.put_nowait((sink, data))
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_s: float) -> None:
        """Writes what is left; gives up after the timeout."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            sink, data = piece
            try:
                sink(data)
                self.problem = ""
            except OSError as error:  # the disk is full, or the console is gone: the job goes on without
                self.problem = str(error)


class LogFile:
    """A file that becomes FILE.1 when it has `bytes_max`. The loop's thread opens and renames, the writer's writes and closes.

    One that cannot be opened now (a full disk, no descriptors left) is tried again at each write, which raises OSError till then.
    What could not be written is lost, and the file says so.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._fd, self._bytes, self._lost = -1, 0, 0
        with contextlib.suppress(OSError):
            self._open()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._bytes = os.fstat(self._fd).st_size

    def rename(self, path: Path) -> None:
        """A file of that name stays as it is, this one then keeps its old name."""
        with self._lock:
            if self._fd < 0:
                self.path = path
            elif not path.exists():
                self.path = self.path.rename(path)

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._lost:
                data = f"[deadpool: {self._lost} pieces of output lost]\n".encode() + data
            self._lost += 1
            self._write(data)
            self._lost = 0

    def _write(self, data: bytes) -> None:
        if self._fd >= 0 and self._bytes and self._bytes + len(data) > self._bytes_max:
            fd, self._fd = self._fd, -1
            os.close(fd)
            self.path.replace(older(self.path))
        if self._fd < 0:
            self._open()
        self._bytes += len(data)
        _write_all(self._fd, data)

    def close(self, _: bytes = b"") -> None:
        if self._fd >= 0:
            os.close(self._fd)


def older(path: Path) -> Path:
    """Returns where a log file's earlier part is, if there is one."""
    return path.with_name(f"{path.name}.1")


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class Logs:
    """The logs of one node. `folder`: made if need be."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder = folder
        self._bytes_max = bytes_max
        folder.mkdir(parents=True, exist_ok=True)
        self.files = LogWriter("log-files")
        self.console = LogWriter("log-console")
        self._filtered: dict[str, LogFile] = {}

    @property
    def problem(self) -> str:
        """Returns why files cannot be written now, "" when they can."""
        return self.files.problem

    def open(self, routes: LogRoutes) -> "RankLog":
        return RankLog(self, routes)

    def open_with_control(self, routes: LogRoutes) -> tuple["RankLog", socket.socket, socket.socket]:
        """Returns an opened log, and both ends of a connection to the process that it is for. OSError as RankLog.open."""
        log = self.open(routes)
        log.open()
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            log.handed_over()
            log.close()
            raise
        return log, ours, theirs

    def file(self, name: str) -> LogFile:
        return LogFile(self.folder / name, self._bytes_max)

    def filtered(self, name: str) -> LogFile:
        """Returns the file that all ranks of the node share."""
        if name not in self._filtered:
            self._filtered[name] = self.file(name)
        return self._filtered[name]

    def close(self, timeout_s: float) -> None:
        for file in self._filtered.values():
            self.files.write(file.close, b"")
        self.files.close(timeout_s)
        self.console.close(timeout_s)


class RankLog:
    """One process's output. `open` makes `stdout_fd`, `stderr_fd` for the process; closed here by `handed_over`."""

    def __init__(self, logs: Logs, routes: LogRoutes) -> None:
        self._logs = logs
        self._routes = routes
        self._file = logs.file(routes.name)
        self._own = {stream: logs.file(name) for stream, name in routes.files.items()}
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._pipes: dict[int, tuple[int, bytearray]] = {}  # read end -> (1 stdout or 2 stderr, line begun)
        self._drained = asyncio.Event()
        self.stdout_fd = self.stderr_fd = -1

    def open(self) -> None:
        """OSError: there are no descriptors for both streams; try again."""
        pipes: list[tuple[int, int]] = []
        try:
            for _ in range(2):
                pipes.append(os.pipe())
        except OSError:
            for fd in itertools.chain(*pipes):
                os.close(fd)
            raise
        for stream, (read_fd, _) in enumerate(pipes, 1):
            os.set_blocking(read_fd, False)
            self._pipes[read_fd] = (stream, bytearray())
            asyncio.get_running_loop().add_reader(read_fd, self._readable, read_fd)
        (_, self.stdout_fd), (_, self.stderr_fd) = pipes

    def handed_over(self) -> None:
        """The process has the write ends: ours would keep the pipes open for ever."""
        for fd in (self.stdout_fd, self.stderr_fd):
            if fd >= 0:
                os.close(fd)
        self.stdout_fd = self.stderr_fd = -1

    def rename(self, routes: LogRoutes) -> None:
        """The stand-in plays a rank from now on."""
        self._routes = routes
        self._file.rename(self._logs.folder / routes.name)
        self._own = {stream: self._logs.file(name) for stream, name in routes.files.items()}

    def keep_error(self, path: Path) -> None:
        """Copies the error file that the process has left, torch's @record among others, to where its logs are."""
        with contextlib.suppress(OSError):
            kept = self._logs.folder / self._routes.error_file
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, kept)

    def tail(self) -> str:
        """Returns the last lines, bounded and printable."""
        return printable(b"\n".join(self._tail).decode(errors="replace"))

    async def drained(self) -> None:
        """Returns once the pipes are at their end; never, as long as some child of the process holds them open."""
        await self._drained.wait()

    def close(self) -> None:
        """Once the process has ended: what its children still print is not read."""
        for read_fd in list(self._pipes):
            self._end(read_fd)
        for file in (self._file, *self._own.values()):
            self._logs.files.write(file.close, b"")

    def _readable(self, read_fd: int) -> None:
        try:
            data = os.read(read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._end(read_fd)
            return
        stream, begun = self._pipes[read_fd]
        self._logs.files.write(self._file.write, data)
        if stream in self._own:
            self._logs.files.write(self._own[stream].write, data)
        begun += data
        if b"\n" in data or len(begun) > _LINE_BYTES_MAX:
            *lines, rest = bytes(begun).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            begun[:] = rest
            self._lines(stream, lines)

    def _lines(self, stream: int, lines: list[bytes]) -> None:
        self._tail += lines
        routes = self._routes
        if stream in routes.filters:
            name, words = routes.filters[stream]
            chosen = [b"%b%b\n" % (routes.prefix, line) for line in lines if any(word in line for word in words)]
            self._logs.files.write(self._logs.filtered(name).write, b"".join(chosen))
        if stream not in routes.console:
            return
        show = partial(_write_all, stream)
        piece = b""
        for line in lines:  # pieces that a pipe takes whole: several agents write to the same console
            line = b"%b%b\n" % (routes.prefix, line)
            if piece and len(piece) + len(line) > _PIPE_BUF:
                self._logs.console.write(show, piece)
                piece = b""
            piece += line
        if piece:
            self._logs.console.write(show, piece)

    def _end(self, read_fd: int) -> None:
        asyncio.get_running_loop().remove_reader(read_fd)
        os.close(read_fd)
        stream, begun = self._pipes.pop(read_fd)
        if begun:
            self._lines(stream, [bytes(begun)])
        if not self._pipes:
            self._drained.set()
