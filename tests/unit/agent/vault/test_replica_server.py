"""The replica receiver: whole replicas are sealed and served, anything else is refused and leaves the kept slot alone."""

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replicas import RANK, Receiver, Replica, ask, send, send_all, serving, spread

from deadpool.host.errors import ProtocolError
from deadpool.proto.messages import NO_STEP, RankSet, Slot, SlotKind
from deadpool.proto.secret import make_token
from deadpool.proto.vault.holdings import from_json
from deadpool.proto.vault.layout import HEADER_BYTES, TURNS, Header, Tables
from deadpool.proto.vault.together import HeldTogether
from deadpool.proto.vault.wire import (
    GetData,
    GetHead,
    GetHoldings,
    JoinData,
    Reply,
    ReserveSlots,
    receive_reply,
    send_end_of_pieces,
    send_piece,
    send_request,
    send_whole,
)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with serving(tmp_path) as receiver:
        yield receiver


def refused(connection: socket.socket, replica: Replica, keep_step: int, sender_generation: int) -> bool:
    """Returns whether the Put was refused; the server closes immediately, so the sender may see just that."""
    try:
        return "has begun" in send(connection, replica, keep_step, sender_generation).error
    except (ConnectionError, ProtocolError):
        return True


def reserved(receiver: Receiver) -> socket.socket:
    connection = receiver.connect()
    assert ask(connection, ReserveSlots(rank=RANK, slot_bytes=Replica(0).slot_bytes))[0] == Reply()
    return connection


def test_a_replica_is_put_reported_and_read_back(receiver: Receiver) -> None:
    connection = reserved(receiver)
    replica = Replica(step=5)
    assert send(connection, replica) == Reply()
    together = HeldTogether(RANK).of(Tables.from_bytes(replica.header, replica.tables))
    sets = (RankSet(ranks=(1, 2), digest=together[1, 2, RANK] >> 1),)
    assert receiver.vault.slots() == (Slot(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5, peer_sets=sets, unique=True),)
    _, head = ask(connection, GetHead(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5))
    assert Header.from_page(head[:HEADER_BYTES]) == replica.header
    assert head[HEADER_BYTES:] == replica.tables
    ranges = ((100_000, 72), (0, 10))
    _, data = ask(connection, GetData(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5, ranges=ranges))
    assert data == bytes(replica.data[100_000:100_072] + replica.data[:10])


def test_the_tables_of_whatever_state_is_there(receiver: Receiver) -> None:
    connection = reserved(receiver)
    anything = GetHead(kind=SlotKind.REPLICA, rank=RANK, generation=0, step=NO_STEP)
    assert ask(connection, anything)[0].error
    replica = Replica(step=5)
    send(connection, replica)
    assert ask(connection, anything)[1][HEADER_BYTES:] == replica.tables


def test_what_all_sealed_slots_hold(receiver: Receiver) -> None:
    connection = reserved(receiver)
    assert from_json(ask(connection, GetHoldings())[1]) == ()
    send(connection, Replica(step=5))
    (held,) = from_json(ask(connection, GetHoldings())[1])
    assert (held.kind, held.rank, held.generation, held.step) == (SlotKind.REPLICA, RANK, 1, 5)
    assert [(row.items, row.size_bytes, row.ranks) for row in held.holdings if row.ranks] == [(1, 1000, (1, 2))]
    assert sum(row.size_bytes for row in held.holdings) == 1000 + 100_000 + 8 + len(b"meta")


def test_slots_take_turns_and_the_committed_one_stays(receiver: Receiver) -> None:
    connection = reserved(receiver)
    for step, keep, held in ((1, NO_STEP, {1}), (2, 1, {1, 2}), (3, 2, {2, 3}), (4, 2, {2, 4}), (5, 4, {4, 5})):
        assert send(connection, Replica(step), keep) == Reply()
        assert receiver.steps() == held


@pytest.mark.parametrize("keep_step", [NO_STEP, 5])
def test_a_state_that_is_put_again_is_there_once_as_it_was_put_last(receiver: Receiver, keep_step: int) -> None:
    """Ranks have parted since: what the first copy leaves out can no longer be had from peers."""
    connection = reserved(receiver)
    for meta in (b"meta", b"again", b"and again"):
        replica = Replica(step=5, meta=meta)
        assert send(connection, replica, keep_step) == Reply()
        _, head = ask(connection, GetHead(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=5))
        assert head[HEADER_BYTES:] == replica.tables
        assert len(receiver.vault.slots()) == 1


@pytest.mark.parametrize("what", ["unique item", "layout", "tables", "header", "another step"])
def test_a_corrupt_replica_is_not_sealed_and_the_other_stays(receiver: Receiver, what: str) -> None:
    connection = reserved(receiver)
    assert send(connection, Replica(step=1)) == Reply()
    corrupt = Replica(step=2)
    put, page, cut = corrupt.put(keep_step=1), bytearray(corrupt.header.to_page()), corrupt.header.layout_bytes
    match what:
        case "unique item":
            corrupt.data[50_000] ^= 1
        case "layout":
            corrupt.tables = b"[" + corrupt.tables[1:cut].replace(b"[", b"]") + corrupt.tables[cut:]
        case "tables":
            corrupt.tables = corrupt.tables[:-1] + bytes([corrupt.tables[-1] ^ 1])
        case "header":
            page[30] ^= 1
        case "another step":
            page = bytearray(Replica(step=9).header.to_page())
    send_request(connection, put)
    assert not receive_reply(connection).error
    with contextlib.suppress(ConnectionError):  # it is closed as soon as that is certain
        connection.sendall(corrupt.tables[:cut])
        send_piece(connection, 0, memoryview(corrupt.data))
        send_end_of_pieces(connection)
        for part in (corrupt.tables[cut:], page):
            connection.sendall(part)
    with contextlib.suppress(ConnectionError):
        assert receive_reply(connection).error
    with contextlib.suppress(ConnectionError):
        assert connection.recv(1) == b""  # after a failed Put nobody knows where the next request begins
    assert receiver.steps() == {1}


def test_a_state_that_has_grown_gets_a_larger_slot(receiver: Receiver) -> None:
    connection = receiver.connect()
    first, grown = Replica(step=1), Replica(step=2)
    assert ask(connection, ReserveSlots(rank=RANK, slot_bytes=first.header.slot_bytes))[0] == Reply()
    assert send(connection, first) == Reply()
    grown.header = replace(grown.header, data_offset=grown.header.data_offset + (1 << 20))
    assert send(connection, grown, keep_step=1) == Reply()
    assert receiver.steps() == {1, 2}


def test_a_torn_put_leaves_one_slot_empty_and_the_next_one_fills_it(receiver: Receiver) -> None:
    connection = reserved(receiver)
    for step in (1, 2):
        assert send(connection, Replica(step=step), keep_step=1) == Reply()
    torn, deadline_s = Replica(step=3), time.monotonic() + 50
    send_request(connection, torn.put(keep_step=2))
    assert not receive_reply(connection).error
    connection.sendall(torn.tables[: torn.header.layout_bytes])
    send_piece(connection, 0, memoryview(torn.data)[:50_000])
    while receiver.steps() != {2}:  # until it is being written, the next one would not meet it
        assert time.monotonic() < deadline_s
    assert send(receiver.connect(), Replica(step=3), keep_step=2) == Reply()  # a new connection ends the one that hangs
    assert connection.recv(1) == b""
    assert receiver.steps() == {2, 3}


def test_an_older_sender_is_refused_and_interrupted(receiver: Receiver) -> None:
    old = reserved(receiver)
    assert send(old, Replica(step=1)) == Reply()
    send_request(old, Replica(step=2).put(keep_step=1))
    assert not receive_reply(old).error
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
    assert "need" in ask(connection, ReserveSlots(rank=RANK, slot_bytes=1 << 60))[0].error
    assert ask(connection, ReserveSlots(rank=RANK, slot_bytes=Replica(0).slot_bytes))[0] == Reply()
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
        stranger = socket.create_connection(("127.0.0.1", receiver.server.port), timeout=50.0)
        with stranger, contextlib.suppress(ConnectionError):  # it is closed while we still speak
            stranger.sendall(garbage)
            while stranger.recv(4096):
                pass
    assert send(reserved(receiver), Replica(step=1)) == Reply()
    assert sum("refused" in record.message for record in caplog.records) == 1


def test_silent_strangers_cannot_keep_members_out(receiver: Receiver) -> None:
    strangers = [socket.create_connection(("127.0.0.1", receiver.server.port), timeout=50.0) for _ in range(40)]
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


def conversation(replica: Replica) -> bytes:
    """Returns all that follows the Put of a state that is sent whole."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        send_all(ours, replica)
        ours.close()
        return theirs.makefile("rb").read()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_sender_that_dies_at_any_byte_leaves_the_committed_state_and_no_other(receiver: Receiver, share: float) -> None:
    connection = reserved(receiver)
    for step in (1, 2):
        assert send(connection, Replica(step), keep_step=step - 1) == Reply()
    said = conversation(dying := Replica(3))
    cut = int(share * len(said))
    dies = receiver.connect()
    send_request(dies, dying.put(keep_step=2))
    assert (receive_reply(dies).held_step, receiver.steps()) == (1, {2})
    dies.sendall(said[:cut])
    dies.close()
    assert send(connection, Replica(4), keep_step=2) == Reply()  # waits until the other write has ended
    assert receiver.steps() == {2, 4}


def several(receiver: Receiver, group: str) -> list[socket.socket]:
    """Returns three connections; the others have joined the first one's Puts."""
    connections = [receiver.connect() for _ in range(3)]
    for index, joined in enumerate(connections[1:], 1):
        send_request(joined, JoinData(group=group, index=index))
        assert receive_reply(joined) == Reply()
    return connections


OVER_THREE = {"connections": 3, "stripe_bytes": 4_000}


def test_a_replica_may_come_over_several_connections_again_and_again(receiver: Receiver) -> None:
    reserved(receiver)
    first, *others = several(receiver, "g")
    for step in (1, 2):
        put = (replica := Replica(step)).put(keep_step=step - 1, group="g", **OVER_THREE)
        send_request(first, put)
        assert not receive_reply(first).error
        for connection, carried in reversed(list(zip((first, *others), spread(replica, put), strict=True))):
            connection.sendall(carried)
        assert receive_reply(first) == Reply()
    assert send(first, Replica(3), keep_step=2) == Reply(), "and over one again"
    assert receiver.steps() == {2, 3}
    first.close()
    assert [other.recv(1) for other in others] == [b"", b""], "they end with it"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), dies=st.integers(0, 2))
def test_a_connection_of_several_that_dies_at_any_byte_leaves_the_committed_state_and_no_other(
    receiver: Receiver, share: float, dies: int
) -> None:
    connection, group = reserved(receiver), str(uuid.uuid4())
    for step in (1, 2):
        assert send(connection, Replica(step), keep_step=step - 1) == Reply()
    connections = several(receiver, group)
    put = (replica := Replica(3)).put(keep_step=2, group=group, **OVER_THREE)
    send_request(connections[0], put)
    assert receive_reply(connections[0]).held_step == 1
    for index, carried in enumerate(spread(replica, put)):
        with contextlib.suppress(ConnectionError):  # the holder has seen the end of another one
            connections[index].sendall(carried[: int(share * len(carried))] if index == dies else carried)
            if index == dies:
                connections[index].close()
    if dies != 0:
        with contextlib.suppress(ConnectionError):
            assert connections[0].recv(1) == b"", "no reply"
    assert send(connection, Replica(4), keep_step=2) == Reply()  # waits until the other write has ended
    assert receiver.steps() == {2, 4}


def test_a_put_over_connections_that_have_not_joined_is_refused(receiver: Receiver) -> None:
    connection = reserved(receiver)
    several(receiver, "others")
    put = (replica := Replica(1)).put(group="g", **OVER_THREE)
    send_request(connection, put)
    assert not receive_reply(connection).error
    with contextlib.suppress(ConnectionError):
        connection.sendall(spread(replica, put)[0])
        assert connection.recv(1) == b""
    assert receiver.steps() == set()


def test_what_the_holder_has_of_a_state_need_not_be_sent_again(receiver: Receiver) -> None:
    connection = reserved(receiver)
    first, second, third = Replica(1), Replica(2), Replica(3)
    third.data[:100_000] = first.data[:100_000]  # the moment; the step count has changed
    third.reseal()
    assert send(connection, first) == send(connection, second, keep_step=1) == Reply()
    send_request(connection, third.put(keep_step=2))
    assert receive_reply(connection) == Reply(held_generation=1, held_step=1)
    cut = third.header.layout_bytes
    connection.sendall(third.tables[:cut])
    send_piece(connection, 100_032, memoryview(third.data)[100_032:100_040])
    send_end_of_pieces(connection)
    connection.sendall(third.tables[cut:] + third.header.to_page())
    assert receive_reply(connection) == Reply()
    asked = GetData(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=3, ranges=((0, 100_000), (100_032, 8)))
    _, data = ask(connection, asked)
    assert data == bytes(third.data[:100_000] + third.data[100_032:100_040])


@pytest.mark.parametrize("torn", [False, True])
def test_what_the_holder_does_not_have_must_come(receiver: Receiver, torn: bool) -> None:
    connection = reserved(receiver)
    first, second, third = Replica(1), Replica(2), Replica(3)
    if torn:
        third.data[:] = first.data
        third.reseal()
    assert send(connection, first) == send(connection, second, keep_step=1) == Reply()
    if torn:
        dies = receiver.connect()
        send_request(dies, Replica(3).put(keep_step=2))
        assert receive_reply(dies).held_step == 1
        dies.close()
        connection = receiver.connect()
    send_request(connection, third.put(keep_step=2))
    assert receive_reply(connection).held_step == (NO_STEP if torn else 1)
    cut = third.header.layout_bytes
    connection.sendall(third.tables[:cut])
    send_end_of_pieces(connection)
    connection.sendall(third.tables[cut:] + third.header.to_page())
    assert ("is not held" if torn else "another checksum") in receive_reply(connection).error
    assert receiver.steps() == {2}


def send_named(connection: socket.socket, replica: Replica) -> tuple[bool, Reply]:
    """Sends a replica whose layout is named by its checksum. Returns whether the holder had that layout, and its last reply."""
    send_request(connection, replica.put(replica.header.step - 1, layout_checksum=replica.header.layout_checksum))
    held = bool(receive_reply(connection).layout_held)
    if not held:
        send_all(connection, replica)
    else:
        send_piece(connection, 0, memoryview(replica.data))
        send_end_of_pieces(connection)
        connection.sendall(replica.tables[replica.header.layout_bytes :] + replica.header.to_page())
    return held, receive_reply(connection)


def test_a_layout_that_has_come_need_not_come_again(receiver: Receiver) -> None:
    connection = reserved(receiver)
    for step in range(3 * TURNS):
        replica = Replica(step)
        assert send_named(connection, replica) == (step > 0, Reply())
        _, head = ask(connection, GetHead(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=step))
        assert head[HEADER_BYTES:] == replica.tables
    assert receiver.steps() == {3 * TURNS - 2, 3 * TURNS - 1}


def test_a_holder_that_was_replaced_has_the_layout_sent_again(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with serving(tmp_path / name) as holder:
            connection = reserved(holder)
            assert [send_named(connection, Replica(step)) for step in (1, 2)] == [(False, Reply()), (True, Reply())]
            assert holder.steps() == {1, 2}


def test_a_layout_that_is_not_what_its_checksum_says_is_refused_and_not_kept(receiver: Receiver) -> None:
    reserved(receiver)
    for _ in range(2):
        connection, replica = receiver.connect(), Replica(1)
        send_request(connection, replica.put(layout_checksum=replica.header.layout_checksum ^ 1))
        assert not receive_reply(connection).layout_held
        connection.sendall(replica.tables[: replica.header.layout_bytes])
        assert "its layout is torn" in receive_reply(connection).error
    assert receiver.steps() == set()


@pytest.mark.parametrize("whole", [True, False])
def test_a_layout_that_went_bad_in_a_slot_is_written_again(receiver: Receiver, whole: bool) -> None:
    """Where the slot is torn as well, with the next state; else in its turn."""
    connection = reserved(receiver)
    for step in range(2):
        send_named(connection, Replica(step))
    for path in receiver.vault.folder.glob("replica-*"):
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"?", HEADER_BYTES + 5)
            if not whole:
                os.pwrite(file.fileno(), bytes(HEADER_BYTES), 0)
    assert receiver.steps() == set()
    last = 2 + (2 * TURNS if whole else 2)
    for step in range(2, last):
        assert send_named(connection, Replica(step)) == (True, Reply())
    assert receiver.steps() == {last - 2, last - 1}


@pytest.mark.parametrize("piece", [(0, 200_000), (100_033, 8), (8, 100_000)])
def test_pieces_that_lie_outside_or_begin_within_an_item_are_refused(receiver: Receiver, piece: tuple[int, int]) -> None:
    connection = reserved(receiver)
    replica = Replica(1)
    send_request(connection, replica.put())
    assert not receive_reply(connection).error
    connection.sendall(replica.tables[: replica.header.layout_bytes])
    with contextlib.suppress(ConnectionError):  # it is closed without reading all
        send_piece(connection, piece[0], memoryview(bytes(piece[1])))
        assert receive_reply(connection).error
    assert receiver.steps() == set()


def send_without_asking(connection: socket.socket, replica: Replica, *, with_layout: bool, keep_step: int = NO_STEP) -> Reply:
    put = replica.put(keep_step, layout_checksum=replica.header.layout_checksum, whole=1, with_layout=int(with_layout))
    cut = replica.header.layout_bytes
    layout = replica.tables[:cut] if with_layout else b""
    send_whole(connection, put, layout, [memoryview(replica.data)], (replica.tables[cut:], replica.header.to_page()))
    return receive_reply(connection)


@pytest.mark.parametrize("unique", [True, False])  # other nodes hold all of it: the tables travel alone
def test_small_replicas_are_sent_whole_again_and_again(receiver: Receiver, unique: bool) -> None:
    connection = reserved(receiver)
    for step in range(2 * TURNS):
        replica = Replica(step, unique=unique)
        assert send_without_asking(connection, replica, with_layout=step < 2, keep_step=step - 1) == Reply()
        _, head = ask(connection, GetHead(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=step))
        assert head[HEADER_BYTES:] == replica.tables
        ranges = ((0, len(replica.data)),)
        _, data = ask(connection, GetData(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=step, ranges=ranges))
        assert data == bytes(replica.data)
    assert receiver.steps() == {2 * TURNS - 2, 2 * TURNS - 1}


@pytest.mark.parametrize("wrong", ["no slots", "layout not known", "older generation", "item"])
def test_who_sends_whole_hears_why_it_is_refused_though_all_is_under_way(receiver: Receiver, wrong: str) -> None:
    connection = receiver.connect()
    replica = Replica(2, moment_bytes=8 << 20)  # more than the connection takes while nobody reads
    if wrong != "no slots":
        assert ask(connection, ReserveSlots(rank=RANK, slot_bytes=replica.slot_bytes))[0] == Reply()
        assert send(connection, Replica(1)) == Reply()
    if wrong == "older generation":
        receiver.server.fence(2)
    if wrong == "item":
        replica.data[-100] ^= 1
    said = send_without_asking(connection, replica, with_layout=wrong != "layout not known", keep_step=1).error
    expected = {"no slots": "no replica slots", "layout not known": "is not known here", "older generation": "has begun"}
    assert expected.get(wrong, "another checksum") in said
    assert connection.recv(1) == b""
    assert receiver.steps() == (set() if wrong == "no slots" else {1})


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_who_sends_whole_and_dies_at_any_byte_leaves_the_committed_state_and_no_other(receiver: Receiver, share: float) -> None:
    connection = reserved(receiver)
    for step in (1, 2):
        assert send_without_asking(connection, Replica(step), with_layout=step == 1, keep_step=step - 1) == Reply()
    said = conversation(dying := Replica(3))
    dies = receiver.connect()
    send_request(dies, dying.put(2, layout_checksum=dying.header.layout_checksum, whole=1, with_layout=1))
    dies.sendall(said[: int(share * len(said))])
    dies.close()
    deadline_s = time.monotonic() + 50
    while receiver.steps() != {2}:  # until it is being written, the next one would not meet it
        assert time.monotonic() < deadline_s
    assert send_without_asking(connection, Replica(4), with_layout=False, keep_step=2) == Reply()
    assert receiver.steps() == {2, 4}
