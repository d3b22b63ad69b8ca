"""How a replica comes in: its parts are verified while they come, all of it before it is sealed (proto/vault/wire.py)."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from deadpool.agent.vault.joined import JoinedConnections
from deadpool.host.errors import ProtocolError, SnapshotError
from deadpool.proto.frames import receive_exactly
from deadpool.proto.vault.arriving import ArrivingItems
from deadpool.proto.vault.layout import HEADER_BYTES, Header, Layout, SlotFile, Tables, checksum
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


class KnownLayouts:
    """The layouts that came last with the replicas of each rank: one that is known need not come again (wire.py)."""

    def __init__(self) -> None:
        self._known: dict[int, dict[tuple[int, int], Layout]] = {}  # by rank; by checksum and size

    def find(self, put: Put) -> Layout | None:
        """Returns the layout that the Put names, None when it has to come."""
        return self._known.get(put.rank, {}).get((put.layout_checksum, put.layout_bytes)) if put.layout_checksum else None

    def add(self, put: Put, layout: Layout) -> None:
        """The replica has come with this layout. The one before is known as well: ranks part, and are the same again."""
        known = self._known.get(put.rank, {})
        name = (put.layout_checksum, put.layout_bytes)
        self._known[put.rank] = dict([*((each, known[each]) for each in known if each != name)][-1:]) | {name: layout}


def tables_in_place(slot: SlotFile, header: Header | None, put: Put, known: Layout | None) -> Tables | None:
    """Returns what the slot holds where the new replica's data come to lie; None when nothing of it can be left there.

    `known`: the layout that the Put names.
    """
    if header is None or header.data_offset != put.data_offset:
        return None
    with contextlib.suppress(SnapshotError):
        if known is None or (header.layout_checksum, header.layout_bytes) != (put.layout_checksum, put.layout_bytes):
            return slot.tables(header)
        rest = slot.view[HEADER_BYTES + header.layout_bytes : HEADER_BYTES + header.tables_bytes]
        return Tables.of_layout(known, header, rest)
    return None


def arrived(
    connection: socket.socket,
    arrival: Arrival,
    put: Put,
    path: Path,
    data: memoryview,
    known: Layout | None,
    before: Tables | None,
    turn: int,
) -> tuple[Header, Layout, bytes, int]:
    """Returns the replica's header, its layout, the rest of its tables, and how many bytes have come, once all has.

    SnapshotError unless they and every unique item are what the rank had. `known`: the layout that the Put names, which does not
    come then; `before`: of the state that lies there, of which the sender may leave items as they are; `turn`: of the slot.
    """
    said = f"replica of rank {put.rank}, step {put.step}"
    layout = known if known is not None else _layout(connection, put)
    items, complete = ArrivingItems(layout, data), False
    come_bytes = put.tables_bytes + HEADER_BYTES - (put.layout_bytes if known is not None else 0)
    arrival.begin(put, path)
    try:
        for begin, end in _steps(connection, put):
            arrival.fill(data[begin:end])
            items.landed(begin, end)
            come_bytes += end - begin
        complete = True
    finally:
        arrival.end(complete=complete)
    rest = receive_exactly(connection, put.tables_bytes - put.layout_bytes)
    header = Header.from_page(receive_exactly(connection, HEADER_BYTES))
    if header is None:
        raise SnapshotError(f"{said}: its header is torn")
    names = ("rank", "generation", "step", "data_offset", "data_bytes", "layout_bytes", "tables_bytes")
    if any(getattr(header, name) != getattr(put, name) for name in names):
        raise SnapshotError(f"{said}: its header says {header}")
    if header.layout_checksum != layout.digest:
        raise SnapshotError(f"{said}: its header is of another layout")
    whole = Tables.of_layout(layout, header, rest)
    if len(whole.checksums) != len(layout.items) or layout.unique_bytes != put.data_bytes:
        raise SnapshotError(f"{said}: its tables do not agree")
    items.check(whole, before, turn)
    return header, layout, rest, come_bytes


def _layout(connection: socket.socket, put: Put) -> Layout:
    """Receives the layout."""
    raw = receive_exactly(connection, put.layout_bytes)
    with contextlib.suppress(ValueError, TypeError):
        layout = Layout.from_bytes(raw)
        if layout.digest == checksum(raw) and put.layout_checksum in (0, layout.digest):
            return layout
    raise SnapshotError(f"replica of rank {put.rank}, step {put.step}: its layout is torn")


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
