"""The MPI pair of a replication edge: where its two processes, the ranks and the agents meet, and what they say to each other.

    rank ==unix==> sender (a process of the owner's node) ==MPI==> receiver (a process of the holder's node) ==unix==> agent

The first reply says what the holder has; behind it comes the layout, raw, where it has none. The second one: the slot is open.
Then come frames of pieces, at last the rest of the tables and the header page, raw. One rank's state is carried after another's.

The sockets lie in the nodes' vaults, which only the job's user can enter. Requests and replies are those of wire.py. A replica's
data touch none of these connections: the sender reads them from the rank's slot, the receiver writes them into the holder's. An
agent that has the receiver stop closes its half of the connection; the receiver closes its own once it does not write there any
more.

| frame        | from, to        | says                                                                                    |
|--------------|-----------------|-----------------------------------------------------------------------------------------|
| file, pieces | rank, sender    | what lies in that file and travels, as it is copied; without a piece: that was all      |
| file, offset | agent, receiver | after the layout: the data's place in the holder's slot                                 |
| landed       | receiver, agent | so many bytes have, of the piece whose head came before and of those before it          |
| busy         | sender, rank    | still at work, or one after another: once a second while a reply is due                 |
"""

import mmap
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import receive_rest

VAULT_SOCKET = "holder"
_EDGE_PREFIX = "edge-"
STALL_S = 5.0  # without any progress of a transfer, its other end is taken for frozen
BUSY_EVERY_S = 1.0
FRAME_BYTES_MAX = 1 << 20


class Piece(NamedTuple):
    """Bytes that travel: from `offset` of the rank's slot file to `to_offset` of the replica's data."""

    to_offset: int
    offset: int
    size_bytes: int


def pieces_in(value: object, data_bytes: int) -> tuple[Piece, ...]:
    """Returns the pieces that a frame names; ProtocolError unless they lie in data of so many bytes, one behind the other."""
    try:
        pieces = tuple(Piece(*map(int, each)) for each in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ProtocolError("not a list of pieces") from error
    at = 0
    for each in pieces:
        if each.to_offset < at or each.offset < 0 or each.size_bytes <= 0:
            raise ProtocolError(f"{each} after {at}")
        at = each.to_offset + each.size_bytes
    if at > data_bytes:
        raise ProtocolError(f"pieces up to {at} of {data_bytes} bytes")
    return pieces


def chunks_of(pieces: Sequence[Piece], chunk_bytes: int) -> Iterator[Piece]:
    """Yields what travels as one message each, the same at both ends."""
    for piece in pieces:
        for begin in range(0, piece.size_bytes, chunk_bytes):
            yield Piece(piece.to_offset + begin, piece.offset + begin, min(chunk_bytes, piece.size_bytes - begin))


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
