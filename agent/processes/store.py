"""The node's store process, seen from the agent: made once the job has hooks, or at the first OpenStore, then kept warm.

The agent itself listens, so that the port is known immediately: whoever connects waits in the backlog until the process, which
may have to import torch first, has taken the listener over.
"""

import logging
import socket
from collections.abc import Callable

from deadpool.agent.health.fd_exhaustion import is_exhaustion
from deadpool.agent.logs.routing import file_only
from deadpool.agent.logs.writer import Logs
from deadpool.agent.processes.side_process import SideProcess
from deadpool.agent.processes.warm import WarmProcess
from deadpool.host.errors import ProtocolError
from deadpool.host.ports import listen_at
from deadpool.proto import warm_wire
from deadpool.proto.warm_wire import ForkKind, FrameReader, Open, Opened

_ATTEMPTS_MAX = 3
_BACKLOG = 4096  # ranks that may come before it is served
_log = logging.getLogger(__name__)


class StoreProcess:
    """`on_opened(generation, port, error)` answers every `open()` immediately."""

    def __init__(self, warm: WarmProcess, logs: Logs, host: str, on_opened: Callable[[int, int, str], None]) -> None:
        self._host, self._on_opened = host, on_opened
        self._asked: dict[int, int] = {}  # generation -> attempts
        self._ports: dict[int, int] = {}  # of the generations that are served, or will be
        self._listeners: dict[int, socket.socket] = {}  # of those; ours until the process has taken them over
        self._reader = FrameReader()
        self.side = SideProcess(
            warm, logs, file_only("store"), ForkKind.STORE,
            environment={}, on_ready=self._ready, on_data=self._heard, on_ended=self._lost,
        )  # fmt: skip

    def prepare(self) -> None:
        """Has the process there, with torch imported, before a store is asked for: a recovery would wait for that."""
        self.side.start()

    def open(self, generation: int) -> None:
        """OSError: there is no descriptor for a listener; to be asked for again."""
        if generation in self._ports:
            self._on_opened(generation, self._ports[generation], "")
            return
        try:
            listening = listen_at(self._host, backlog=_BACKLOG)
        except OSError as error:
            if is_exhaustion(error):
                raise
            self._on_opened(generation, 0, f"no rendezvous store on {self._host}: {error}")
            return
        self._asked[generation], self._listeners[generation] = 1, listening
        if self.side.pid:
            self._ask(generation)
        self.side.start()
        self._ports[generation] = listening.getsockname()[1]
        self._on_opened(generation, self._ports[generation], "")

    def _ready(self) -> None:
        self._reader = FrameReader()
        for generation in list(self._asked):
            self._ask(generation)

    def _ask(self, generation: int) -> None:
        assert self.side.control is not None
        try:
            warm_wire.send(self.side.control, Open(generation=generation), (self._listeners[generation].fileno(),))
        except ConnectionError:
            return  # it is dead: _lost asks the next one

    def _heard(self, data: bytes) -> None:
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
        error = f"the rendezvous store's process died: {self.side.tail()}"
        self.side.close()
        for generation, attempts in list(self._asked.items()):
            self._asked[generation] = attempts + 1
            if attempts >= _ATTEMPTS_MAX:
                _log.warning("%s", error)
                self._settle(generation)
        if self._asked:
            self.side.start()
