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

_STOP_S = 1.0  # for the receiver to leave the slot alone; then it is killed
_GONE_S = 5.0  # for a killed one to be gone
_PEER = struct.Struct("iII")  # SO_PEERCRED: pid, uid, gid


class LandingArrival:
    """`connection`: the receiver's. One that does not stop writing when it is told to is killed (proto/vault/transport.py)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._interrupted = threading.Event()
        self._size_bytes = self._landed_bytes = self._wanted_bytes = 0
        self._pidfd: int | None = None
        pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def begin(self, path: Path, offset: int, size_bytes: int) -> None:
        self._interrupted.clear()
        self._size_bytes, self._landed_bytes, self._wanted_bytes = size_bytes, 0, 0
        self._connection.sendall(to_frame({"file": str(path), "offset": offset, "size_bytes": size_bytes}))

    def fill(self, target: memoryview) -> None:
        self._wanted_bytes += len(target)
        while self._landed_bytes < self._wanted_bytes:
            while not select.select([self._connection], [], [], _STOP_S)[0]:
                if self._interrupted.is_set():
                    raise ProtocolError("interrupted, and the receiver does not stop")
            if not self._hear():
                raise ProtocolError("interrupted")

    def interrupt(self) -> None:
        self._interrupted.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        if self._landed_bytes >= self._size_bytes:
            return
        self.interrupt()
        try:
            self._connection.settimeout(_STOP_S)
            while self._landed_bytes < self._size_bytes and self._hear():
                pass
            self._connection.settimeout(None)
        except (ProtocolError, OSError):
            self._kill()

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _hear(self) -> bool:
        """Returns False once the receiver has said that it does not write any more."""
        frame = receive_frame(self._connection)
        self._landed_bytes = int(str(frame.get("landed", self._landed_bytes)))
        return "stopped" not in frame

    def _kill(self) -> None:
        """Its end ends the pair: this node's replicas travel by TCP until there is another one."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            select.select([self._pidfd], [], [], _GONE_S)
