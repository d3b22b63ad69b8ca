"""The MPI pair of a replication edge: where its two processes, the ranks and the agents meet, and what they say to each other.

    rank ==unix==> sender (a process of the owner's node) ==MPI==> receiver (a process of the holder's node) ==unix==> agent

The sockets lie in the nodes' vaults, which only the job's user can enter. Requests and replies are those of wire.py. A replica's
data touch none of these connections: the sender reads them from the rank's slot, the receiver writes them into the holder's.

| frame                   | from, to        | says                                                                           |
|-------------------------|-----------------|--------------------------------------------------------------------------------|
| file, ranges            | rank, sender    | after Put: where the data lie; then tables and header page, raw                |
| file, offset, size_bytes | agent, receiver | after the first reply to Put, the layout and the pieces, which is one: the place |
| landed                  | receiver, agent | so many bytes of it have; after the last one tables and header page come, raw   |
| stopped                 | receiver, agent | it does not write to that place any more (the agent has closed its half)        |
| busy                    | sender, rank    | still at work, or one after another: once a second while a reply is due          |
"""

import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import receive_rest

VAULT_SOCKET = "holder"
_EDGE_PREFIX = "edge-"
STALL_S = 5.0  # without any progress of a transfer, its other end is taken for frozen
BUSY_EVERY_S = 1.0
FRAME_BYTES_MAX = 1 << 20


def edge_name(holder: str) -> str:
    """Returns the name of the socket, in the owner's vault, of the sender to that node."""
    return f"{_EDGE_PREFIX}{holder}"


def listen_in(folder: Path, name: str) -> socket.socket:
    """Returns a socket that listens under that name in the folder, however long the folder's own name is. OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(folder) as short:
            listener.bind(f"{short}/{name}")
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def connect_in(folder: Path, name: str, timeout_s: float) -> socket.socket:
    """Returns a connection to who listens under that name in the folder; OSError when nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        with _short(folder) as short:
            connection.connect(f"{short}/{name}")
    except OSError:
        connection.close()
        raise
    return connection


def receive_frame(connection: socket.socket) -> dict[str, object]:
    """Returns the next frame; ProtocolError when it is none, or the peer has closed."""
    first = connection.recv(1)
    if not first:
        raise ProtocolError("connection closed")
    return receive_rest(connection, first, FRAME_BYTES_MAX)


class Mappings:
    """Slot files stay mapped from one replica to the next: a new mapping faults each page. `access`: of the mmap module."""

    def __init__(self, access: int) -> None:
        self._access = access
        self._known: dict[Path, tuple[tuple[int, int], memoryview]] = {}

    def of(self, path: Path) -> memoryview:
        """Returns the memory of the file as it is now: one that was replaced, or has grown, is mapped again. OSError."""
        status = path.stat()
        now = (status.st_ino, status.st_size)
        known = self._known.get(path)
        if known is None or known[0] != now:
            with path.open("rb" if self._access == mmap.ACCESS_READ else "r+b") as file:
                known = now, memoryview(mmap.mmap(file.fileno(), 0, access=self._access))
            self._known[path] = known
        return known[1]


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Enters with a short path of the folder: one of a socket has 107 bytes at most."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
