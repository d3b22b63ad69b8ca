"""How a slot's data leave this vault: from the file into the connections, by the kernel alone (proto/vault/wire.py)."""

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from deadpool.proto.vault.wire import GetData, stripes_of


def send_ranges(connections: Sequence[socket.socket], request: GetData, file: int, data_offset: int) -> None:
    """Sends the request's ranges of the data, which begin at `data_offset` in the open file; by a thread for each connection.

    What a writer changes meanwhile is seen by whoever checks what has come. OSError: a connection, or the file, has ended.
    """
    if len(connections) == 1:
        _send(connections[0], file, ((data_offset + offset, size) for offset, size in request.ranges))
        return
    with ThreadPoolExecutor(len(connections)) as threads:
        own = [_of(index, request, data_offset) for index in range(len(connections))]
        sending = [threads.submit(_send_or_end, each, file, parts) for each, parts in zip(connections, own, strict=True)]
    for each in sending:
        each.result()


def _of(connection: int, request: GetData, data_offset: int) -> Iterator[tuple[int, int]]:
    """Yields where in the file lies what goes over this connection."""
    position = 0
    for offset, size in request.ranges:
        for index, begin, end in stripes_of(size, position, request):
            if index == connection:
                yield data_offset + offset + begin, end - begin
        position += size


def _send_or_end(connection: socket.socket, file: int, parts: Iterable[tuple[int, int]]) -> None:
    """Whichever of them fails, the others end: nobody waits for what will not come."""
    try:
        _send(connection, file, parts)
    except OSError:
        connection.shutdown(socket.SHUT_RDWR)
        raise


def _send(connection: socket.socket, file: int, parts: Iterable[tuple[int, int]]) -> None:
    for offset, size in parts:
        at, end = offset, offset + size
        while at < end:
            sent = os.sendfile(connection.fileno(), file, at, end - at)
            if sent == 0:
                raise ConnectionError(f"the slot ends at {at}, before {end}")
            at += sent
