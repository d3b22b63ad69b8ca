"""Requests and replies between nodes' vaults: they survive the wire, and garbage is a ProtocolError and nothing else."""

import json
import socket
import typing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadpool.host.errors import ProtocolError
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault import wire
from deadpool.proto.vault.wire import Discard, GetData, GetHead, GetHoldings, JoinData, Put, Reply, Request, ReserveSlots, stripes

NUMBERS = st.integers(-1, 2**63 - 1)
RANGES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5).map(tuple)
REQUESTS = st.one_of(
    st.builds(ReserveSlots, rank=NUMBERS, slot_bytes=NUMBERS),
    st.builds(
        Put, rank=NUMBERS, generation=NUMBERS, step=NUMBERS, keep_step=NUMBERS, data_offset=NUMBERS, data_bytes=NUMBERS,
        layout_bytes=NUMBERS, tables_bytes=NUMBERS, group=st.text(max_size=5), connections=NUMBERS, stripe_bytes=NUMBERS,
    ),
    st.builds(JoinData, group=st.text(max_size=5), index=NUMBERS),
    st.builds(Discard, kind=st.sampled_from(SlotKind), rank=NUMBERS, generation=NUMBERS, step=NUMBERS),
    st.builds(GetHoldings),
    st.builds(GetHead, kind=st.sampled_from(SlotKind), rank=NUMBERS, generation=NUMBERS, step=NUMBERS),
    st.builds(GetData, kind=st.sampled_from(SlotKind), rank=NUMBERS, generation=NUMBERS, step=NUMBERS, ranges=RANGES),
)  # fmt: skip


def receive_request(sent: bytes) -> Request | None:
    """Returns what a server makes of these bytes, after which the peer has closed."""
    left, right = socket.socketpair()
    with left, right:
        left.sendall(sent)
        left.shutdown(socket.SHUT_WR)
        return wire.receive_request(right)


def frame(value: object) -> bytes:
    body = json.dumps(value).encode()
    return len(body).to_bytes(4, "big") + body


@given(st.lists(REQUESTS, max_size=3))
def test_requests_survive_the_wire_in_order(requests: list[Request]) -> None:
    left, right = socket.socketpair()
    with left, right:
        for request in requests:
            wire.send_request(left, request)
        left.close()
        assert [wire.receive_request(right) for _ in requests] == requests
        assert wire.receive_request(right) is None


@given(NUMBERS, st.text(st.characters(codec="utf-8")))
def test_replies_survive_the_wire(raw_bytes: int, error: str) -> None:
    left, right = socket.socketpair()
    with left, right:
        wire.send_reply(left, Reply(raw_bytes=raw_bytes, error=error))
        assert wire.receive_reply(right) == Reply(raw_bytes=raw_bytes, error=error)


def test_every_request_is_tested() -> None:
    assert set(typing.get_args(Request)) == {ReserveSlots, Put, GetHead, GetData, Discard, GetHoldings, JoinData}


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5), st.integers(1, 4), st.integers(1, 20))
def test_each_byte_has_its_connection_wherever_the_data_are_cut(
    data: bytes, cuts: list[int], connections: int, stripe_bytes: int
) -> None:
    put = Put(
        rank=0, generation=1, step=1, keep_step=0, data_offset=0, data_bytes=len(data), layout_bytes=0, tables_bytes=0,
        connections=connections, stripe_bytes=stripe_bytes,
    )  # fmt: skip
    carried: list[list[int]] = []
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        for index, part in stripes(memoryview(data)[begin:end], begin, put):
            carried += [[index, byte] for byte in part]
    assert carried == [[at // stripe_bytes % connections, byte] for at, byte in enumerate(data)]


HEAD = {"request": "GetHead", "kind": "snapshot", "rank": 0, "generation": 1, "step": 2}


@pytest.mark.parametrize(
    "sent",
    [
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x05{\"a\"",
        frame([]),
        frame({}),
        frame({"request": "Drop"}),
        frame({"request": "ReserveSlots"}),
        frame({"request": "ReserveSlots", "rank": 1, "slot_bytes": "many"}),
        frame({"request": "ReserveSlots", "rank": 1, "slot_bytes": 2, "more": 3}),
        frame(HEAD | {"kind": "ghost"}),
        frame(HEAD | {"rank": None}),
        frame(HEAD | {"request": "GetData", "ranges": 3}),
        frame(HEAD | {"request": "GetData", "ranges": [3]}),
        frame(HEAD | {"request": "GetData", "ranges": [[1, 2, 3]]}),
        frame(HEAD | {"request": "GetData", "ranges": [[1, "2"]]}),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        receive_request(sent)


@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_are_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        receive_request(sent)


@pytest.mark.parametrize("sent", [b"", frame({}), frame({"raw_bytes": "1", "error": ""})])
def test_what_is_no_reply_is_refused(sent: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(sent)
        left.close()
        with pytest.raises(ProtocolError):
            wire.receive_reply(right)


def test_receive_into_fills_or_refuses() -> None:
    left, right = socket.socketpair()
    target = memoryview(bytearray(8))
    with left, right:
        left.sendall(b"12345678abc")
        left.close()
        wire.receive_into(right, target)
        assert bytes(target) == b"12345678"
        with pytest.raises(ProtocolError, match="after 3 of 8"):
            wire.receive_into(right, target)
