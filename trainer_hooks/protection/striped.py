"""The bytes of a Put's pieces, spread over the connections that carry it (proto/vault/wire.py), by one thread."""

import select
import socket
from collections import deque
from collections.abc import Sequence

from deadpool.proto.vault.wire import Put, piece_head, send_piece, stripes


class Striped:
    """`connections`: the Put's own first. `timeout_s`: without any progress of one that has to send: TimeoutError."""

    def __init__(self, connections: Sequence[socket.socket], put: Put, timeout_s: float) -> None:
        assert len(connections) == put.connections
        self._connections, self._put, self._timeout_s = connections, put, timeout_s
        self._position = 0

    def send_piece(self, offset: int, view: memoryview, *, behind: bytes = b"") -> None:
        """Sends a piece, after what comes before it."""
        if len(self._connections) == 1:
            send_piece(self._connections[0], offset, view, behind=behind)
            return
        queues = [deque[memoryview]() for _ in self._connections]
        queues[0].append(memoryview(behind + piece_head(offset, len(view))))
        for index, part in stripes(view, self._position, self._put):
            queues[index].append(part)
        self._position += len(view)
        self._send({each.fileno(): (each, queue) for each, queue in zip(self._connections, queues, strict=True) if queue})

    def _send(self, left: dict[int, tuple[socket.socket, deque[memoryview]]]) -> None:
        poll = select.poll()
        for fd in left:
            poll.register(fd, select.POLLOUT)
        while left:
            ready = poll.poll(1000 * self._timeout_s)
            if not ready:
                raise TimeoutError(f"nothing was taken for {self._timeout_s:g} s")
            for fd, _ in ready:
                connection, queue = left[fd]
                try:
                    sent = connection.send(queue[0], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                queue[0] = queue[0][sent:]
                if not queue[0]:
                    queue.popleft()
                if not queue:
                    del left[fd]
                    poll.unregister(fd)
