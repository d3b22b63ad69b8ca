"""How a replica comes in: its parts are verified while they come, all of it before it is sealed (proto/vault/wire.py)."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from deadpool.agent.vault.joined import JoinedConnections
from deadpool.host.errors import ProtocolError, SnapshotError
from deadpool.proto.frames import receive_exactly
from deadpool.proto.vault.arriving import ArrivingItems
from deadpool.proto.vault.layout import HEADER_BYTES, Header, Layout, SlotFile, Tables
from deadpool.proto.vault.transport import Arrival
from deadpool.proto.vault.wire import Put, receive_into, receive_piece, stripes

STEP_BYTES = 1 << 20  # received, then checked: fits into a core's cache


class TcpArrival:
    """The data come over the connection itself, and those that have joined it (proto/vault/transport.py).

    One thread reads all of them, in the order of the data: what comes early waits in the kernel's buffers.
    """

    def __init__(self, connection: socket.socket, joined: JoinedConnections) -> None:
        self._connection, self._joined = connection, joined
        self._put: Put | None = None
        self._group = ""  # of those that have joined
        self._connections = [connection]
        self._position = 0  # among the bytes of all pieces
        self._interrupted = False

    def begin(self, put: Put, path: Path) -> None:
        self._put, self._position = put, 0
        self._group = put.group or self._group
        self._connections = [self._connection, *self._joined.of(put.group, put.connections)]
        if self._interrupted:
            raise ProtocolError("interrupted")

    def fill(self, target: memoryview) -> None:
        assert self._put is not None
        for index, part in stripes(target, self._position, self._put):
            receive_into(self._connections[index], part)
        self._position += len(target)

    def interrupt(self) -> None:
        self._interrupted = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def end(self, *, complete: bool) -> None:
        """Nobody but the caller writes to that place; what has not come stays in the connections."""

    def close(self) -> None:
        """Those that have joined end with it."""
        self._joined.release(self._group)


def tables_in_place(slot: SlotFile, header: Header | None, put: Put) -> Tables | None:
    """Returns what the slot holds where the new replica's data come to lie; None when nothing of it can be left there."""
    if header is None or header.data_offset != put.data_offset:
        return None
    with contextlib.suppress(SnapshotError):
        return slot.tables(header)
    return None


def arrived(
    connection: socket.socket, arrival: Arrival, put: Put, path: Path, data: memoryview, before: Tables | None, turn: int
) -> tuple[Header, bytearray, int]:
    """Returns the replica's header, its tables, and how many bytes of data have come, once all has.

    SnapshotError unless they and every unique item are what the rank had. `before`: of the state that lies there, of which the
    sender may leave items as they are; `turn`: of the slot.
    """
    said = f"replica of rank {put.rank}, step {put.step}"
    raw = bytearray(put.tables_bytes)
    receive_into(connection, memoryview(raw)[: put.layout_bytes])
    try:
        layout = Layout.from_bytes(memoryview(raw)[: put.layout_bytes])
    except (ValueError, TypeError) as error:
        raise SnapshotError(f"{said}: its layout is torn") from error
    items, come_bytes, complete = ArrivingItems(layout, data), 0, False
    arrival.begin(put, path)
    try:
        for begin, end in _steps(connection, put):
            arrival.fill(data[begin:end])
            items.landed(begin, end)
            come_bytes += end - begin
        complete = True
    finally:
        arrival.end(complete=complete)
    receive_into(connection, memoryview(raw)[put.layout_bytes :])
    header = Header.from_page(receive_exactly(connection, HEADER_BYTES))
    if header is None:
        raise SnapshotError(f"{said}: its header is torn")
    names = ("rank", "generation", "step", "data_offset", "data_bytes", "layout_bytes", "tables_bytes")
    if any(getattr(header, name) != getattr(put, name) for name in names):
        raise SnapshotError(f"{said}: its header says {header}")
    whole = Tables.from_bytes(header, raw)
    if len(whole.checksums) != len(whole.layout.items) or whole.layout.unique_bytes != put.data_bytes:
        raise SnapshotError(f"{said}: its tables do not agree")
    items.check(whole, before, turn)
    return header, raw, come_bytes


def _steps(connection: socket.socket, put: Put) -> Iterator[tuple[int, int]]:
    """Yields the ranges of the data that come next: of each piece, so much that its checksum finds it in the cache."""
    at = 0
    while True:
        begin, size = receive_piece(connection)
        if size == 0:
            return
        if begin < at or begin + size > put.data_bytes:
            raise SnapshotError(f"replica of rank {put.rank}: {size} bytes at {begin}, after {at}, of {put.data_bytes}")
        at = begin + size
        for part in range(begin, at, STEP_BYTES):
            yield part, min(at, part + STEP_BYTES)
