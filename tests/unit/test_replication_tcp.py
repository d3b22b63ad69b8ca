"""The replica receiver: whole replicas are sealed and served, anything else is refused and leaves the kept slot alone."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deadpool.agent.replication.tcp import ReplicaServer
from deadpool.agent.vault import Vault
from deadpool.proto.errors import ProtocolError
from deadpool.proto.messages import NO_STEP, RankSet, Slot, SlotKind
from deadpool.proto.secret import make_token, prove_as_client
from deadpool.proto.vault_layout import HEADER_BYTES, Header, Item, Layout, Tables, checksum, slot_capacity
from deadpool.proto.vault_wire import (
    Discard,
    GetData,
    GetHead,
    Put,
    Reply,
    Reserve,
    receive_into,
    receive_reply,
    send_request,
)

TOKEN = make_token()
RANK = 3


class Replica:
    """A state of rank 3 with two unique items and a replicated one, ready to be sent."""

    def __init__(self, step: int, generation: int = 1) -> None:
        items = [
            Item(key="weight", offset=0, nbytes=1000, dtype="float32", shape=(250,), peers=0),
            Item(key="moment", offset=0, nbytes=100_000, dtype="float32", shape=(25_000,)),
            Item(key="step", offset=0, nbytes=8, dtype="int64", shape=()),
        ]
        layout = Layout.place(items, [(1, 2)])
        self.data = bytearray(os.urandom(layout.unique_bytes))
        sums = tuple(checksum(bytes(self.data[each.offset : each.offset + each.nbytes])) for each in layout.items[:2])
        self.tables, layout_bytes = Tables(layout=layout, meta=b"meta", checksums=(*sums, 77)).to_bytes()
        self.slot_bytes, data_offset = slot_capacity(layout.unique_bytes, len(items), 4)
        self.header = Header(
            rank=RANK,
            generation=generation,
            step=step,
            layout_bytes=layout_bytes,
            meta_bytes=4,
            items=3,
            data_offset=data_offset,
            data_bytes=layout.unique_bytes,
            unique_bytes=layout.unique_bytes,
            tables_checksum=checksum(self.tables),
        )

    def put(self, keep_step: int = NO_STEP, sender_generation: int = 1) -> Put:
        return Put(
            rank=RANK, generation=self.header.generation, step=self.header.step, keep_step=keep_step,
            data_offset=self.header.data_offset, data_bytes=len(self.data), tables_bytes=len(self.tables),
            sender_generation=sender_generation,
        )  # fmt: skip


class Receiver:
    def __init__(self, root: Path) -> None:
        self.vault = Vault.create(root, "job", "node0")
        self.server = ReplicaServer("127.0.0.1", TOKEN)
        self.server.start(self.vault.folder)
        self._connections: list[socket.socket] = []

    def connect(self, token: str = TOKEN) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=10.0)
        self._connections.append(connection)
        prove_as_client(connection, token)
        connection.settimeout(10.0)
        return connection

    def steps(self) -> set[int]:
        return {slot.step for slot in self.vault.slots()}

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.server.close()
        self.vault.remove()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path)
    yield receiver
    receiver.close()
    for thread in threading.enumerate():
        if thread.name.startswith("replica-"):
            thread.join(10.0)
            assert not thread.is_alive(), thread


def ask(connection: socket.socket, request: Reserve | GetHead | GetData | Discard) -> tuple[Reply, bytes]:
    send_request(connection, request)
    reply = receive_reply(connection)
    raw = bytearray(reply.raw_bytes)
    receive_into(connection, memoryview(raw))
    return reply, bytes(raw)


def send(connection: socket.socket, replica: Replica, keep_step: int = NO_STEP, sender_generation: int = 1) -> Reply:
    send_request(connection, replica.put(keep_step, sender_generation))
    for part in (replica.data, replica.tables, replica.header.to_page()):
        connection.sendall(part)
    return receive_reply(connection)


def refused(connection: socket.socket, replica: Replica, keep_step: int, sender_generation: int) -> bool:
    """Returns whether the Put was refused; the server closes at once, so the sender may see just that."""
    try:
        return "has begun" in send(connection, replica, keep_step, sender_generation).error
    except (ConnectionError, ProtocolError):
        return True


def reserved(receiver: Receiver) -> socket.socket:
    connection = receiver.connect()
    assert ask(connection, Reserve(rank=RANK, slot_bytes=Replica(0).slot_bytes))[0] == Reply()
    return connection


def test_a_replica_is_put_reported_and_read_back(receiver: Receiver) -> None:
    connection = reserved(receiver)
    replica = Replica(step=5)
    assert send(connection, replica) == Reply()
    assert receiver.vault.slots() == (
        Slot(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5, peer_sets=(RankSet(ranks=(1, 2)),)),
    )
    _, head = ask(connection, GetHead(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5))
    assert Header.from_page(head[:HEADER_BYTES]) == replica.header
    assert head[HEADER_BYTES:] == replica.tables
    ranges = ((100_000, 72), (0, 10))
    _, data = ask(connection, GetData(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5, ranges=ranges))
    assert data == bytes(replica.data[100_000:100_072] + replica.data[:10])


def test_slots_take_turns_and_the_committed_one_stays(receiver: Receiver) -> None:
    connection = reserved(receiver)
    for step, keep, held in ((1, NO_STEP, {1}), (2, 1, {1, 2}), (3, 2, {2, 3}), (4, 2, {2, 4}), (5, 4, {4, 5})):
        assert send(connection, Replica(step), keep) == Reply()
        assert receiver.steps() == held


@pytest.mark.parametrize("what", ["unique item", "tables", "header", "another step"])
def test_a_corrupt_replica_is_not_sealed_and_the_other_stays(receiver: Receiver, what: str) -> None:
    connection = reserved(receiver)
    assert send(connection, Replica(step=1)) == Reply()
    corrupt = Replica(step=2)
    put, page = corrupt.put(keep_step=1), bytearray(corrupt.header.to_page())
    match what:
        case "unique item":
            corrupt.data[50_000] ^= 1
        case "tables":
            corrupt.tables = corrupt.tables[:-1] + bytes([corrupt.tables[-1] ^ 1])
        case "header":
            page[30] ^= 1
        case "another step":
            page = bytearray(Replica(step=9).header.to_page())
    send_request(connection, put)
    for part in (corrupt.data, corrupt.tables, page):
        connection.sendall(part)
    assert receive_reply(connection).error
    assert connection.recv(1) == b""  # after a failed Put nobody knows where the next request begins
    assert receiver.steps() == {1}


def test_a_state_that_has_grown_gets_a_larger_slot(receiver: Receiver) -> None:
    connection = receiver.connect()
    first, grown = Replica(step=1), Replica(step=2)
    assert ask(connection, Reserve(rank=RANK, slot_bytes=first.header.slot_bytes))[0] == Reply()
    assert send(connection, first) == Reply()
    grown.header = replace(grown.header, data_offset=grown.header.data_offset + (1 << 20))
    assert send(connection, grown, keep_step=1) == Reply()
    assert receiver.steps() == {1, 2}


def test_a_torn_put_leaves_one_slot_empty_and_the_next_one_fills_it(receiver: Receiver) -> None:
    connection = reserved(receiver)
    assert send(connection, Replica(step=1)) == Reply()
    torn = Replica(step=2)
    send_request(connection, torn.put(keep_step=1))
    connection.sendall(torn.data[:50_000])
    assert send(receiver.connect(), Replica(step=2), keep_step=1) == Reply()  # a new connection ends the one that hangs
    assert connection.recv(1) == b""
    assert receiver.steps() == {1, 2}


def test_an_older_sender_is_refused_and_interrupted(receiver: Receiver) -> None:
    old = reserved(receiver)
    assert send(old, Replica(step=1)) == Reply()
    send_request(old, Replica(step=2).put(keep_step=1))
    old.sendall(b"begun")
    receiver.server.fence(2)
    assert refused(receiver.connect(), Replica(step=2), keep_step=1, sender_generation=1)
    assert receiver.steps() == {1}
    new = receiver.connect()
    assert send(new, Replica(step=1, generation=1), keep_step=1, sender_generation=3) == Reply()
    assert refused(receiver.connect(), Replica(step=2), keep_step=1, sender_generation=2)
    assert receiver.steps() == {1}


def test_what_is_not_there_does_not_fit_or_lies_outside_gets_an_error_and_no_more(receiver: Receiver) -> None:
    connection = receiver.connect()
    assert "no replica of rank 3" in ask(connection, GetHead(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5))[0].error
    assert "need" in ask(connection, Reserve(rank=RANK, slot_bytes=1 << 60))[0].error
    assert ask(connection, Reserve(rank=RANK, slot_bytes=Replica(0).slot_bytes))[0] == Reply()
    assert send(connection, Replica(step=5)) == Reply()
    outside = GetData(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5, ranges=((0, 1 << 30),))
    assert "outside" in ask(connection, outside)[0].error
    send_request(connection, replace(Replica(step=6).put(keep_step=5), data_bytes=1 << 60))
    assert "are free" in receive_reply(connection).error
    assert receiver.steps() == {5}


def test_without_the_token_nothing_is_served(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with pytest.raises(ProtocolError):
            receiver.connect(make_token())
    for garbage in (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 64, b"\xff" * 5000):
        stranger = socket.create_connection(("127.0.0.1", receiver.server.port), timeout=10.0)
        with stranger, contextlib.suppress(ConnectionError):  # it is closed while we still speak
            stranger.sendall(garbage)
            while stranger.recv(4096):
                pass
    assert send(reserved(receiver), Replica(step=1)) == Reply()
    assert sum("refused" in record.message for record in caplog.records) == 1


def test_silent_strangers_cannot_keep_members_out(receiver: Receiver) -> None:
    strangers = [socket.create_connection(("127.0.0.1", receiver.server.port), timeout=10.0) for _ in range(40)]
    try:
        assert send(reserved(receiver), Replica(step=1)) == Reply()
    finally:
        for stranger in strangers:
            stranger.close()


def test_garbage_after_the_token_ends_the_connection_only(receiver: Receiver) -> None:
    for garbage in (b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b"\0\0\0\x02{}", b'\0\0\0\x12{"request": "Put"}'):
        connection = receiver.connect()
        connection.sendall(garbage)
        assert connection.recv(1) == b""
    assert send(reserved(receiver), Replica(step=1)) == Reply()
