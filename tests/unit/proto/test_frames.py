"""JSON objects over a stream: whole, in pieces, and what is none."""

import socket

import pytest

from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import LENGTH_BYTES, FrameSplitter, receive_rest, to_frame

FIELDS: dict[str, object] = {"a": 1, "b": ["x", "é"]}


@pytest.mark.parametrize("begun", range(1, LENGTH_BYTES + 1))
def test_a_frame_arrives_whatever_was_received_of_its_length(begun: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(to_frame(FIELDS))
        assert receive_rest(right, right.recv(begun), 1000) == FIELDS


def test_frames_that_come_in_pieces_come_out_whole() -> None:
    data = to_frame(FIELDS) + to_frame({})
    for size in range(1, len(data)):
        splitter = FrameSplitter()
        found = [frame for at in range(0, len(data), size) for frame in splitter.feed(data[at : at + size])]
        assert found == [FIELDS, {}]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x00\x00\x02[]", "not an object"),
        (b"\x00\x00\x00\x02{]", "not JSON"),
        (b"\x7f\x00\x00\x00", "frame of"),
        (b"\x00\x00\x00\x09{", "closed after 1 of 9"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, reason: str) -> None:
    left, right = socket.socketpair()
    with right:
        with left:
            left.sendall(data)
        with pytest.raises(ProtocolError, match=reason):
            receive_rest(right, right.recv(1), 1000)
