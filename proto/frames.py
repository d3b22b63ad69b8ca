"""JSON objects over a stream of bytes, each behind its length: 4 bytes, big-endian."""

import json
import socket

from deadpool.host.errors import ProtocolError

LENGTH_BYTES = 4


def to_frame(fields: dict[str, object]) -> bytes:
    body = json.dumps(fields).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Returns `size` bytes; ProtocolError when the peer closes before."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ProtocolError(f"connection closed after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)


def receive_rest(connection: socket.socket, begun: bytes, bytes_max: int) -> dict[str, object]:
    """Returns the fields of a frame of which 1 to 4 bytes were received already; ProtocolError on anything that is none."""
    size = int.from_bytes(begun + receive_exactly(connection, LENGTH_BYTES - len(begun)), "big")
    if size > bytes_max:
        raise ProtocolError(f"frame of {size} bytes")
    return parse(receive_exactly(connection, size))


def parse(body: bytes) -> dict[str, object]:
    """Returns the fields that a frame's body holds; ProtocolError when it holds none."""
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise ProtocolError("frame is not JSON") from error
    if not isinstance(fields, dict):
        raise ProtocolError("frame is not an object")
    return fields


class FrameSplitter:
    """Takes a stream's bytes as they come, for a receiver that must not wait."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict[str, object]]:
        """Returns the fields of the frames that are complete with this data."""
        self._data += data
        frames = []
        while len(self._data) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._data[:LENGTH_BYTES], "big")
            if len(self._data) < end:
                break
            frames.append(parse(bytes(self._data[LENGTH_BYTES:end])))
            del self._data[:end]
        return frames
