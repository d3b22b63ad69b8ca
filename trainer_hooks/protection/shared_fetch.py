"""What a recovery fetches, over several connections: each is asked for the next bytes as soon as it has room for them.

So a slow connection is given little, and holds up nobody. Each has two requests under way: the vault sends without a pause. The
first ones are small, for nobody knows yet how fast a connection is; later ones are larger.
"""

import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from deadpool.host.errors import DeadpoolError
from deadpool.proto.vault.wire import GetData, Reply, receive_into, send_request

log = logging.getLogger(__name__)
FIRST_BYTES, MOST_BYTES = 512 << 10, 4 << 20  # of a request
_UNDER_WAY = 2  # requests of a connection

Part = tuple[int, memoryview]  # the offset in the slot's data, and the memory to which it comes


class SharedFetch:
    """Fetches `parts` of the slot that the request names. `checked` receives a reply, or raises what it says (SnapshotError)."""

    def __init__(self, request: GetData, parts: Sequence[Part], checked: Callable[[socket.socket], Reply]) -> None:
        self._request, self._checked = request, checked
        self._changed = threading.Condition()  # guards the rest
        self._left = deque(part for part in parts if len(part[1]))
        self._used: set[socket.socket] = set()
        self._error: BaseException | None = None

    def run(self, connection: socket.socket, more: int, connect: Callable[[], socket.socket]) -> None:
        """Returns once all has come, over this connection and up to so many more, which are opened meanwhile and closed again.

        OSError, ProtocolError: one of them has ended; SnapshotError.
        """
        for _ in range(more):
            threading.Thread(target=self._help, args=(connect,), name="deadpool-fetch", daemon=True).start()
        self._fetch(connection)
        with self._changed:  # one that is still being opened is not waited for: there is nothing left that it could ask for
            self._changed.wait_for(lambda: not self._used)
        if self._error is not None:
            raise self._error

    def _help(self, connect: Callable[[], socket.socket]) -> None:
        try:
            connection = connect()
        except (OSError, DeadpoolError) as error:
            log.info("one connection less: %s", error)
            return
        with contextlib.closing(connection):
            self._fetch(connection)

    def _fetch(self, connection: socket.socket) -> None:
        """Fetches what is left, beside the others. Whichever fails, all end: what they wait for is of no use any more."""
        with self._changed:
            self._used.add(connection)
        try:
            for target in self._asked(connection):
                self._checked(connection)
                receive_into(connection, target)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._left.clear()
                for each in self._used:
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
        finally:
            with self._changed:
                self._used.remove(connection)
                self._changed.notify_all()

    def _asked(self, connection: socket.socket) -> Iterator[memoryview]:
        """Yields where the answers to the connection's requests go; more is asked for whenever one has come."""
        size_bytes, under_way = FIRST_BYTES, deque[memoryview]()
        while True:
            while len(under_way) < _UNDER_WAY and (part := self._next(size_bytes)) is not None:
                offset, target = part
                send_request(connection, replace(self._request, ranges=((offset, len(target)),)))
                under_way.append(target)
            if not under_way:
                return
            yield under_way.popleft()
            size_bytes = min(2 * size_bytes, MOST_BYTES)

    def _next(self, size_bytes: int) -> Part | None:
        with self._changed:
            if not self._left:
                return None
            offset, target = self._left.popleft()
            if len(target) > size_bytes:
                self._left.appendleft((offset + size_bytes, target[size_bytes:]))
            return offset, target[:size_bytes]
