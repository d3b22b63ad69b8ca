"""A replica whose data the receiver of an MPI pair writes into the slot, seen from the agent (proto/vault/edge.py)."""

import contextlib
import os
import select
import signal
import socket
import struct
import threading
from pathlib import Path

from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import to_frame
from deadpool.proto.vault.edge import receive_frame
from deadpool.proto.vault.wire import Put

_STOP_S = 1.0  # for the receiver to leave the slot alone; then it is killed
_DRAINED_BYTES = 1 << 16
_GONE_S = 5.0  # for a killed one to be gone
_PEER = struct.Struct("iII")  # SO_PEERCRED: pid, uid, gid


class LandingArrival:
    """`connection`: the receiver's. One that does not stop writing when it is told to is killed (proto/vault/transport.py)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # guards the next two
        self._interrupted = self._begun = False  # begun: the receiver may write
        self._landed_bytes = self._wanted_bytes = 0
        self._pidfd: int | None = None
        pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def begin(self, put: Put, path: Path) -> None:
        self._landed_bytes = self._wanted_bytes = 0
        with self._lock:
            if self._interrupted:
                raise ProtocolError("interrupted")
            self._begun = True
            self._connection.sendall(to_frame({"file": str(path), "offset": put.data_offset}))

    def fill(self, target: memoryview) -> None:
        self._wanted_bytes += len(target)
        while self._landed_bytes < self._wanted_bytes:
            while not select.select([self._connection], [], [], _STOP_S)[0]:
                if self._interrupted:
                    raise ProtocolError("interrupted, and the receiver does not stop")
            self._landed_bytes = int(str(receive_frame(self._connection).get("landed", 0)))

    def interrupt(self) -> None:
        """The receiver finds its connection closed, and closes it as well once it does not write any more."""
        with self._lock, contextlib.suppress(OSError):
            self._interrupted = True
            self._connection.shutdown(socket.SHUT_WR if self._begun else socket.SHUT_RDWR)

    def end(self, *, complete: bool) -> None:
        """The receiver does not say that all has come before it has."""
        if not complete:
            self.interrupt()
            try:
                self._connection.settimeout(_STOP_S)
                while self._connection.recv(_DRAINED_BYTES):
                    pass
                self._connection.settimeout(None)
            except TimeoutError:
                self._kill()
            except OSError:  # it is gone
                pass
        self._begun = False

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _kill(self) -> None:
        """Its end ends the pair: this node's replicas travel by TCP until there is another one."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            select.select([self._pidfd], [], [], _GONE_S)
