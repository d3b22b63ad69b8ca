"""Connections that carry a part of another one's replicas: each waits here, open, until that one has ended."""

import contextlib
import socket
import threading
from dataclasses import dataclass, field

from deadpool.host.errors import ProtocolError

_LOOK_S = 1.0


@dataclass(slots=True)
class _Joined:
    connection: socket.socket
    used: bool = False
    released: threading.Event = field(default_factory=threading.Event)


class JoinedConnections:
    """Of all senders; a group is what one of them calls its own. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, dict[int, _Joined]] = {}
        self._closed = False

    def join(self, group: str, index: int, connection: socket.socket) -> None:
        with self._lock:
            if self._closed or index in self._groups.setdefault(group, {}):
                raise ProtocolError(f"connection {index} of a group that has one already, or is over")
            self._groups[group][index] = _Joined(connection)

    def stay(self, group: str, index: int) -> None:
        """Returns once the connection that has joined is needed no more, or its sender is gone before any use of it."""
        joined = self._groups[group][index]
        while not joined.released.wait(_LOOK_S):
            if not joined.used and _is_closed(joined.connection):
                break
        with self._lock:
            self._groups.get(group, {}).pop(index, None)
            if not self._groups.get(group, True):
                del self._groups[group]

    def of(self, group: str, connections: int) -> list[socket.socket]:
        """Returns the group's connections from 1 on, of so many in all; ProtocolError unless all have joined."""
        with self._lock:
            found = [self._groups.get(group, {}).get(index) for index in range(1, connections)]
            joined = [each for each in found if each is not None]
            if len(joined) < len(found):
                raise ProtocolError(f"{len(joined)} further connections have joined, not {len(found)}")
            for each in joined:
                each.used = True
            return [each.connection for each in joined]

    def release(self, group: str) -> None:
        """The connection that these have joined has ended: they do as well."""
        with self._lock:
            for each in self._groups.get(group, {}).values():
                with contextlib.suppress(OSError):
                    each.connection.shutdown(socket.SHUT_RDWR)
                each.released.set()

    def close(self) -> None:
        with self._lock:
            self._closed, groups = True, list(self._groups)
        for group in groups:
            self.release(group)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
