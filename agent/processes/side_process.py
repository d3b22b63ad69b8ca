"""A process of the agent's own beside the ranks, forked from the warm process: a connection to it, and a log."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping

from deadpool.agent.health.fd_exhaustion import RETRY_S, is_exhaustion
from deadpool.agent.logs.routing import LogRoutes
from deadpool.agent.logs.writer import Logs, RankLog
from deadpool.agent.processes.warm import WarmProcess
from deadpool.proto.warm_wire import ForkKind

_REQUESTS = {ForkKind.STORE: -1, ForkKind.CHECKPOINTS: -2}  # the warm process's numbers for them; ranks count from 0
_RECEIVE_BYTES = 1 << 16


class SideProcess:
    """`on_ready()`: it can be spoken to. `on_data(data)`: what it says. `on_ended()`: it is dead, or has closed its end.

    `pid`: 0 while there is none. `control`: the connection, from the start on; what is written before `on_ready` waits there.
    """

    def __init__(
        self,
        warm: WarmProcess,
        logs: Logs,
        routes: LogRoutes,
        kind: ForkKind,
        *,
        environment: Mapping[str, str],
        arguments: tuple[str, ...] = (),
        on_ready: Callable[[], None],
        on_data: Callable[[bytes], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.request, self.pid = _REQUESTS[kind], 0
        self.control: socket.socket | None = None
        self._warm, self._logs, self._routes, self._kind = warm, logs, routes, kind
        self._environment, self._arguments = dict(environment), arguments
        self._on_ready, self._on_data, self._on_ended = on_ready, on_data, on_ended
        self._theirs: socket.socket | None = None
        self._log: RankLog | None = None
        self._again: asyncio.TimerHandle | None = None  # there were no descriptors to start it with

    def start(self) -> None:
        """Asks for it, if that has not been done, as soon as there are descriptors."""
        if self.control is None and self._again is None:
            self._try()

    def forked(self, pid: int) -> None:
        """The warm process says that it exists."""
        assert self.control is not None
        assert self._theirs is not None
        assert self._log is not None
        self.pid = pid
        self._theirs.close()
        self._log.handed_over()
        asyncio.get_running_loop().add_reader(self.control, self._readable)
        self._on_ready()

    def tail(self) -> str:
        """Returns the last lines that it has printed."""
        return self._log.tail() if self._log is not None else ""

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends it; it may be started again."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self.control is None or self._theirs is None or self._log is None:
            return
        asyncio.get_running_loop().remove_reader(self.control)
        self.control.close()
        self._theirs.close()
        self._log.handed_over()
        self._log.close()
        if self.pid:
            self.kill()
            os.waitpid(self.pid, 0)
        self.control = self._theirs = self._log = None
        self.pid = 0

    def _try(self) -> None:
        self._again = None
        try:
            self._log, self.control, self._theirs = self._logs.open_with_control(self._routes)
        except OSError as error:
            if not is_exhaustion(error):
                raise
            self._again = asyncio.get_running_loop().call_later(RETRY_S, self._try)
            return
        fds = (self._log.stdout_fd, self._log.stderr_fd, self._theirs.fileno())
        self._warm.fork(self.request, self._kind, self._environment, fds, self._arguments)

    def _readable(self) -> None:
        assert self.control is not None
        try:
            data = self.control.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except ConnectionError:
            data = b""
        if data:
            self._on_data(data)
            return
        asyncio.get_running_loop().remove_reader(self.control)
        self._on_ended()
