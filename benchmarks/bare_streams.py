"""A gRPC stream with the least possible client: HTTP/2 by hand on an asyncio socket. For benchmarks/simulated_agents.py.

Thousands of agents share the machine with the supervisor that is measured: what a gRPC client of Python costs for each message
would be most of what is measured then, where on real machines each agent has its own. What comes is given on with the time at
which it was read from the socket, not decoded.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from deadpool.host.addresses import split_host_port
from deadpool.proto.grpc_options import SUPERVISOR_SERVICE
from deadpool.proto.secret import TOKEN_KEY

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_LARGEST_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_FRAME_MAX = 16_384
_STREAM = 1


class BareStream(asyncio.Protocol):
    """One call. `on_message(message, at_s)`: for each message of the other side, by this machine's monotonic clock."""

    def __init__(self, method: str, token: str, on_message: Callable[[bytes, float], None]) -> None:
        self._method, self._token, self._on_message = method, token, on_message
        self._transport: asyncio.Transport | None = None
        self._came, self._message = bytearray(), bytearray()
        self._unsent: deque[bytes] = deque()
        self._windows = [_FIRST_WINDOW, _FIRST_WINDOW]  # what may be sent still: on the connection, on the stream
        self._first_window = _FIRST_WINDOW
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, endpoint: str) -> None:
        """OSError when nobody listens there."""
        await asyncio.get_running_loop().create_connection(lambda: self, *split_host_port(endpoint))

    def send(self, message: bytes) -> None:
        data = b"\0" + struct.pack(">I", len(message)) + message
        self._unsent += (data[at : at + _FRAME_MAX] for at in range(0, len(data), _FRAME_MAX))
        self._send_what_may()

    async def write(self, message: bytes) -> None:
        """As a gRPC call has it."""
        self.send(message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{SUPERVISOR_SERVICE}/{self._method}",
            ":authority": "supervisor",
            "te": "trailers",
            "content-type": "application/grpc",
            TOKEN_KEY: self._token,
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW)
        more = struct.pack(">I", _LARGEST_WINDOW - _FIRST_WINDOW)
        self._transport.write(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW_UPDATE, 0, 0, more)
            + _frame(_HEADERS, _END_HEADERS, _STREAM, block)
        )
        self._send_what_may()

    def data_received(self, data: bytes) -> None:
        at_s = time.monotonic()
        self._came += data
        while len(self._came) >= 9:
            size = int.from_bytes(self._came[:3], "big")
            if len(self._came) < 9 + size:
                return
            kind, flags, body = self._came[3], self._came[4], bytes(self._came[9 : 9 + size])
            on_stream = bool(int.from_bytes(self._came[5:9], "big"))
            del self._came[: 9 + size]
            self._read(kind, flags, body, on_stream, at_s)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    # ------------------------------------------------------------ frames

    def _read(self, kind: int, flags: int, body: bytes, on_stream: bool, at_s: float) -> None:
        assert self._transport is not None
        if kind == _DATA:
            self._message += body
            while len(self._message) >= 5 and len(self._message) >= (end := 5 + int.from_bytes(self._message[1:5], "big")):
                message = bytes(self._message[5:end])
                del self._message[:end]
                self._on_message(message, at_s)
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", body):
                if name == _INITIAL_WINDOW_SIZE:
                    self._windows[1] += value - self._first_window
                    self._first_window = value
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, body))
        elif kind == _WINDOW_UPDATE:
            self._windows[on_stream] += int.from_bytes(body, "big")
        ended = kind in (_RST_STREAM, _GOAWAY) or (kind in (_DATA, _HEADERS) and flags & _END_STREAM)
        if ended:
            self.close()
        elif kind in (_SETTINGS, _WINDOW_UPDATE):
            self._send_what_may()

    def _send_what_may(self) -> None:
        if self._transport is None:
            return
        while self._unsent and min(self._windows) >= len(self._unsent[0]):
            data = self._unsent.popleft()
            self._windows = [left - len(data) for left in self._windows]
            self._transport.write(_frame(_DATA, 0, _STREAM, data))


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def _text(text: str) -> bytes:
    """HPACK, neither indexed nor compressed: its server need not remember anything."""
    data = text.encode()
    assert len(data) < 127
    return bytes((len(data),)) + data
