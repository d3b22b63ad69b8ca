"""How a slot's data leave this vault: from the file into the connection, by the kernel alone (proto/vault/wire.py)."""

import os
import socket
from collections.abc import Iterable


def send_ranges(connection: socket.socket, file: int, ranges: Iterable[tuple[int, int]]) -> None:
    """Sends (offset, bytes) of the open file, one range after the other.

    What a writer changes meanwhile is seen by whoever checks what has come. OSError: the connection, or the file, has ended.
    """
    for offset, size in ranges:
        at, end = offset, offset + size
        while at < end:
            sent = os.sendfile(connection.fileno(), file, at, end - at)
            if sent == 0:
                raise ConnectionError(f"the slot ends at {at}, before {end}")
            at += sent
