"""The node's store process, seen from the agent: made at the first OpenStore, then kept warm for the next ones.

The agent itself listens, so that the port is known at once: whoever connects waits in the backlog until the process, which may
have to import torch first, has taken the listener over.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable

from deadpool.agent.logs import Logs, RankLog
from deadpool.agent.shortage import AGAIN_S, out_of_files
from deadpool.agent.views import quiet
from deadpool.agent.warm import WarmProcess
from deadpool.proto import warm_wire
from deadpool.proto.errors import ProtocolError
from deadpool.proto.warm_wire import ForkKind, FrameReader, Open, Opened

REQUEST = -1  # the warm process's number for the store; ranks count from 0
_RECEIVE_BYTES = 1 << 16
_ATTEMPTS_MAX = 3
_BACKLOG = 4096  # ranks that may come before it is served
_log = logging.getLogger(__name__)


class StoreProcess:
    """`on_opened(generation, port, error)` answers every `open()` at once."""

    def __init__(self, warm: WarmProcess, logs: Logs, host: str, on_opened: Callable[[int, int, str], None]) -> None:
        self._warm, self._logs, self._host, self._on_opened = warm, logs, host, on_opened
        self._asked: dict[int, int] = {}  # generation -> attempts
        self._ports: dict[int, int] = {}  # of the generations that are served, or will be
        self._listeners: dict[int, socket.socket] = {}  # of those; ours until the process has taken them over
        self._control: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._log: RankLog | None = None
        self._reader = FrameReader()
        self._again: asyncio.TimerHandle | None = None  # there were no descriptors to start it with
        self.pid = 0  # 0 while there is none

    def open(self, generation: int) -> None:
        """OSError: there is no descriptor for a listener; to be asked for again."""
        if generation in self._ports:
            self._on_opened(generation, self._ports[generation], "")
            return
        try:
            family = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((self._host, 0), family=family, backlog=_BACKLOG)  # on that one address only
        except OSError as error:
            if out_of_files(error):
                raise
            self._on_opened(generation, 0, f"no rendezvous store on {self._host}: {error}")
            return
        self._asked[generation], self._listeners[generation] = 1, listener
        if self.pid:
            self._ask(generation)
        elif self._control is None and self._again is None:
            self._start()
        self._ports[generation] = listener.getsockname()[1]
        self._on_opened(generation, self._ports[generation], "")

    def forked(self, pid: int) -> None:
        """The warm process says that it exists."""
        assert self._control is not None
        assert self._theirs is not None
        assert self._log is not None
        self.pid = pid
        self._theirs.close()
        self._log.handed_over()
        asyncio.get_running_loop().add_reader(self._control, self._readable)
        for generation in list(self._asked):
            self._ask(generation)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def _start(self) -> None:
        self._again = None
        try:
            self._log, self._control, self._theirs = self._logs.open_with_control(quiet("store"))
        except OSError as error:
            if not out_of_files(error):
                raise
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._start)
            return
        self._reader = FrameReader()
        fds = (self._log.stdout_fd, self._log.stderr_fd, self._theirs.fileno())
        self._warm.fork(REQUEST, ForkKind.STORE, {}, fds)

    def _ask(self, generation: int) -> None:
        assert self._control is not None
        try:
            warm_wire.send(self._control, Open(generation=generation), (self._listeners[generation].fileno(),))
        except ConnectionError:
            return  # it is dead: _readable hears of that as well, and asks the next one

    def _readable(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except ConnectionError:
            data = b""
        if not data:
            self._lost()
        for frame in self._reader.feed(data):
            if not isinstance(frame, Opened):
                raise ProtocolError(f"the store sent {frame}")
            if frame.error:
                _log.warning("the store of generation %d: %s", frame.generation, frame.error)
            self._settle(frame.generation)

    def _settle(self, generation: int) -> None:
        """The process has the store, or nobody will: then whoever waits for it finds the connection closed."""
        if self._asked.pop(generation, 0):
            self._listeners.pop(generation).close()

    def _lost(self) -> None:
        """It died. What it had not answered goes to a new one; a store that is in use is missed by its ranks, who will say so."""
        self._ports = {generation: port for generation, port in self._ports.items() if generation in self._asked}
        error = f"the rendezvous store's process died: {self._log.tail() if self._log else ''}"
        self.close()
        for generation, attempts in list(self._asked.items()):
            self._asked[generation] = attempts + 1
            if attempts >= _ATTEMPTS_MAX:
                _log.warning("%s", error)
                self._settle(generation)
        if self._asked:
            self._start()

    def close(self) -> None:
        """Ends the process. What it had not answered stays asked for."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._control is None or self._log is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._log.close()
        if self.pid:
            self.kill()
            os.waitpid(self.pid, 0)
        self._control, self._log, self.pid = None, None, 0
