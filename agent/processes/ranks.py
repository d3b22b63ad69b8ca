"""The processes of a node: started through the warm process, watched by pidfd, killed with their whole session.

Every process leads a session. When one fails, what it leaves in its session is killed immediately (DataLoader workers hold its
sockets open, and its peers would see no end); what had left the session is an orphan of the agent's, known by DEADPOOL_PROCESS.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deadpool.agent.health.fd_exhaustion import RETRY_S, is_exhaustion, skipped_when_exhausted
from deadpool.agent.logs.writer import RankLog
from deadpool.agent.processes.environment import PROCESS
from deadpool.agent.processes.warm import WarmProcess
from deadpool.host.text import printable
from deadpool.proto.warm_wire import ForkKind

_DRAIN_S = 0.1  # a dead process's pipes are at their end immediately, unless a child of its holds them open
_SILENT_S = 3.0  # so is its stream, but it is read by another thread of this agent, which may get no time for it
_KILL_S = 10.0  # a process that SIGKILL does not end by then hangs in the kernel: the agent goes on without it
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """`exit_code`: as a shell shows it. `error`: the traceback of an uncaught exception, "" when there was none."""

    exit_code: int
    signal: int
    error: str
    log_tail: str


@dataclass(slots=True, kw_only=True)
class _Process:
    log: RankLog
    error_file: Path
    pid: int = 0  # 0 until the fork is done
    pidfd: int = -1
    kill_when_forked: bool = False  # to be killed as soon as it exists
    asked: bool = False  # the warm process has been asked for it


class Processes:
    """`on_forked(process, pid)`, `on_exited(process, exit)`: each once per process, in the loop's thread.

    `silent(process)`: returns when the dead process's stream has been read to its end.
    """

    def __init__(
        self,
        warm: WarmProcess,
        *,
        error_path: Callable[[int], Path],
        silent: Callable[[int], Awaitable[None]],
        on_forked: Callable[[int, int], None],
        on_exited: Callable[[int, Exit], None],
    ) -> None:
        self._warm = warm
        self._error_path = error_path
        self._silent = silent
        self._on_forked, self._on_exited = on_forked, on_exited
        self._processes: dict[int, _Process] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._pids: set[int] = set()  # exist, or are not reaped
        self._failed: set[str] = set()  # numbers of processes that failed: their strays are killed
        self._changed = asyncio.Event()

    def start(self, number: int, environment: dict[str, str], log: RankLog) -> None:
        error_file = self._error_path(number)
        self._processes[number] = _Process(log=log, error_file=error_file)
        own = {_ERROR_FILE: str(error_file), PROCESS: str(number)}
        self._ask(number, environment | own)

    def _ask(self, number: int, environment: dict[str, str]) -> None:
        """Asks for the process, as soon as there are descriptors for its output."""
        process = self._processes.get(number)
        if process is None:
            return  # killed before it was asked for
        try:
            process.log.open()
        except OSError as error:
            if not is_exhaustion(error):
                raise
            asyncio.get_running_loop().call_later(RETRY_S, self._ask, number, environment)
            return
        process.asked = True
        self._warm.fork(number, ForkKind.RANK, environment, (process.log.stdout_fd, process.log.stderr_fd))

    def forked(self, number: int, pid: int) -> None:
        """The warm process says that it exists. It is our child, so its pid stays its own until we reap it."""
        process = self._processes[number]
        process.pid = pid
        self._pids.add(pid)
        process.log.handed_over()
        self._watch(number)
        if process.kill_when_forked:
            self._signal(process, signal.SIGKILL)
        self._changed.set()
        self._on_forked(number, pid)

    def _watch(self, number: int) -> None:
        """Looks out for the process's end, as soon as there is a descriptor for that; it stays a zombie until then."""
        process = self._processes[number]
        try:
            process.pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            if not is_exhaustion(error):
                raise
            asyncio.get_running_loop().call_later(RETRY_S, self._watch, number)
            return
        asyncio.get_running_loop().add_reader(process.pidfd, self._ended, number)

    def log(self, number: int) -> RankLog:
        return self._processes[number].log

    def pid(self, number: int) -> int:
        return self._processes[number].pid

    async def find(self, pid: int, timeout_s: float) -> int | None:
        """Returns the process that this pid is, or belongs to (the command may be a wrapper); waits while forks are under way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._lookup(pid) is None and self._warm.outstanding:
                    self._changed.clear()
                    await self._changed.wait()
        return self._lookup(pid)

    def _lookup(self, pid: int) -> int | None:
        with contextlib.suppress(ProcessLookupError):
            leader = os.getsid(pid)
            return next((number for number, each in self._processes.items() if each.pid and each.pid in (pid, leader)), None)
        return None

    # ------------------------------------------------------------ ends

    def kill(self, number: int, signal_number: int = signal.SIGKILL) -> None:
        process = self._processes[number]
        if process.pid:
            self._signal(process, signal_number)
        elif not process.asked or self._warm.withdraw(number):
            process.log.handed_over()
            self._finish(number, Exit(exit_code=128 + signal_number, signal=signal_number, error="", log_tail=""))
        else:
            process.kill_when_forked = True

    def _signal(self, process: _Process, signal_number: int) -> None:
        """Once: a script may take a second signal for the wish to end without more ado. Not reaped, its number is its own."""
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:  # just forked, it does not lead its session yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal_number)

    def _ended(self, number: int) -> None:
        """The process is dead and not reaped: until it is, its number names its session."""
        process = self._processes[number]
        asyncio.get_running_loop().remove_reader(process.pidfd)
        result = os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT)
        assert result is not None
        by_signal = result.si_code != os.CLD_EXITED
        if by_signal or result.si_status != 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        task = asyncio.create_task(self._finish_after_output(number, result.si_status, by_signal))
        self._endings.add(task)
        task.add_done_callback(self._ending_done)

    async def _finish_after_output(self, number: int, status: int, by_signal: bool) -> None:
        process = self._processes[number]
        with contextlib.suppress(TimeoutError):  # its last words on both ways come before the news of its end
            async with asyncio.timeout(_DRAIN_S):
                await process.log.drained()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENT_S):
                await self._silent(number)
        exit_code = 128 + status if by_signal else status
        if process.error_file.exists():
            process.log.keep_error(process.error_file)
        error = _read_error(process.error_file)
        self._finish(
            number, Exit(exit_code=exit_code, signal=status if by_signal else 0, error=error, log_tail=process.log.tail())
        )
        if exit_code:
            self._failed.add(str(number))
            await asyncio.to_thread(_kill_session, process.pid)
        os.close(process.pidfd)
        os.waitpid(process.pid, 0)
        self._pids.discard(process.pid)

    def _ending_done(self, ending: asyncio.Task[None]) -> None:
        self._endings.discard(ending)
        self._changed.set()
        ending.result()

    def _finish(self, number: int, ended: Exit) -> None:
        self._processes.pop(number).log.close()
        self._changed.set()
        self._on_exited(number, ended)

    async def end_all(self, grace_s: float, signal_number: int) -> None:
        """The signal to all, SIGKILL to those that are left after the grace; returns when all have ended."""
        for sent, timeout_s in ((signal_number, grace_s), (int(signal.SIGKILL), _KILL_S)):
            for number in list(self._processes):
                self.kill(number, sent)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while self._processes or self._endings:
                        self._changed.clear()
                        await self._changed.wait()
                    return

    def signal_all(self, signal_number: int) -> None:
        """Sends the signal to every process that exists."""
        for process in self._processes.values():
            if process.pid:
                self._signal(process, signal_number)

    def kill_now(self) -> None:
        """SIGKILL to all, waiting for nothing: the whole node dies."""
        self.signal_all(signal.SIGKILL)

    def sweep(self, known: set[int], *, strict: bool) -> None:
        """Reaps orphans that have fallen to the agent; kills those whose process has failed. `known`: children to leave alone.

        `strict`: the warm process died, so a child that nobody knows may be one that it forked last: all of them are killed.
        """
        if self._warm.outstanding and not strict:
            return  # a child that is not known yet could be a rank
        for pid in set(children()) - self._pids - known:
            if strict or _tag(pid) in self._failed:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0 if strict else os.WNOHANG)


spared: set[int] = set()  # children that are not the node's part of the job: the supervisor (failover.py)


def children() -> Iterator[int]:
    """Yields the pids of this process's children but for `spared`, dead ones that were not reaped included."""
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            pids = map(int, Path("/proc/self/task", task, "children").read_text().split())
            yield from (pid for pid in pids if pid not in spared)


def _tag(pid: int) -> str:
    """Returns the number of the process that this orphan descends from, "" when it does not say."""
    variables: list[bytes] = []
    with contextlib.suppress(ProcessLookupError):  # it is dead, and only to be reaped
        variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    prefix = f"{PROCESS}=".encode()
    return next((each.removeprefix(prefix).decode() for each in variables if each.startswith(prefix)), "")


def kill_children(timeout_s: float) -> None:
    """Kills and reaps every child, and what falls to this process when they die, until none is left or the timeout is over."""
    deadline_s = time.monotonic() + timeout_s
    while (pids := list(children())) and time.monotonic() < deadline_s:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def _read_error(path: Path) -> str:
    """Returns the traceback that the process (or torch's @record in it) has left in its error file, "" when there is none."""
    try:
        return printable(_error_in(path.read_text(errors="replace")))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"(not known: {error})"
    finally:
        path.unlink(missing_ok=True)


def _error_in(text: str) -> str:
    """Returns the traceback, or what there is instead, in an error file of torchrun's format; the text of any other."""
    try:
        message = json.loads(text)["message"]
        if not isinstance(message, dict):
            return str(message)
        return str(message.get("extraInfo", {}).get("py_callstack") or message.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return text


def _kill_session(session: int) -> None:
    """Kills what is left of a session in other process groups than its leader's; without a descriptor the next sweep does."""
    names: list[str] = []
    with skipped_when_exhausted():
        names = os.listdir("/proc")
    for name in names:
        if name.isdecimal() and int(name) != session:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(name)) == session:
                    os.kill(int(name), signal.SIGKILL)
