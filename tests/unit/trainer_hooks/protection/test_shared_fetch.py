"""A fetch over several connections: everything comes, whichever of them are slow, missing or lost."""

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from deadpool.host.errors import DeadpoolError, ProtocolError, SnapshotError
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.wire import GetData, Reply, receive_reply, receive_request, send_reply
from deadpool.trainer_hooks.protection.shared_fetch import FIRST_BYTES, MOST_BYTES, SharedFetch

REQUEST = GetData(kind=SlotKind.REPLICA, rank=1, generation=1, step=7, ranges=())
DATA = random.Random(1).randbytes(12 << 20)
PARTS = [(0, 5), (64, 0), (128, 7 << 20), (8 << 20, (4 << 20) - 1)]
Answer = Callable[[socket.socket, GetData], None]


def whole(connection: socket.socket, request: GetData) -> None:
    ((offset, size),) = request.ranges
    send_reply(connection, Reply(raw_bytes=size))
    connection.sendall(DATA[offset : offset + size])


class AVault:
    """Answers each connection as the function for it says; one that has none cannot be opened."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers, self._number = answers, iter(range(100))
        self._threads: list[threading.Thread] = []
        self.sent = [0] * len(answers)

    def connect(self) -> socket.socket:
        number = next(self._number)
        if number >= len(self._answers):
            raise OSError("no more connections")
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=self._serve, args=(theirs, number))
        thread.start()
        self._threads.append(thread)
        return ours

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError, ProtocolError):
            while isinstance(request := receive_request(connection), GetData):
                self._answers[number](connection, request)
                self.sent[number] += request.ranges[0][1]

    def join(self) -> None:
        for each in self._threads:
            each.join()


@contextlib.contextmanager
def fetched(vault: AVault, more: int) -> Iterator[list[bytes]]:
    found = [memoryview(bytearray(size)) for _, size in PARTS]
    first = vault.connect()
    try:
        parts = [(offset, target) for (offset, _), target in zip(PARTS, found, strict=True)]
        SharedFetch(REQUEST, parts, checked).run(first, more, vault.connect)
        yield [bytes(each) for each in found]
    finally:
        first.close()
        vault.join()


def checked(connection: socket.socket) -> Reply:
    reply = receive_reply(connection)
    if reply.error:
        raise SnapshotError(reply.error)
    return reply


@pytest.mark.parametrize("answers", [1, 2, 4])
def test_everything_comes_over_those_that_can_be_opened(answers: int) -> None:
    vault = AVault([whole] * answers)
    with fetched(vault, 3) as found:
        assert found == [DATA[offset : offset + size] for offset, size in PARTS]
    assert sum(vault.sent) == sum(size for _, size in PARTS)


def test_a_slow_connection_is_given_little_and_holds_up_nobody() -> None:
    others_have_all = threading.Event()

    def slow(connection: socket.socket, request: GetData) -> None:
        others_have_all.wait(60)
        whole(connection, request)

    def fast(connection: socket.socket, request: GetData) -> None:
        whole(connection, request)
        if vault.sent[0] + request.ranges[0][1] >= sum(size for _, size in PARTS) - 2 * FIRST_BYTES:
            others_have_all.set()

    vault = AVault([fast, slow])
    with fetched(vault, 1) as found:
        assert found == [DATA[offset : offset + size] for offset, size in PARTS]
    assert vault.sent[1] <= 2 * FIRST_BYTES < MOST_BYTES


def test_a_connection_that_does_not_come_up_is_not_waited_for() -> None:
    is_over, closed = threading.Event(), threading.Event()

    class Late(socket.socket):
        def close(self) -> None:
            super().close()
            closed.set()

    def connect() -> socket.socket:
        assert is_over.wait(60)
        return Late(fileno=vault.connect().detach())

    vault = AVault([whole, whole])
    found = memoryview(bytearray(FIRST_BYTES + 1))
    with vault.connect() as first:
        SharedFetch(REQUEST, [(3, found)], checked).run(first, 1, connect)
        assert found == DATA[3 : 4 + FIRST_BYTES]
        is_over.set()
        assert closed.wait(60)  # it finds nothing left to ask for
    vault.join()
    assert vault.sent == [len(found), 0]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("refuses", [False, True])
def test_one_that_ends_or_refuses_ends_all(number: int, refuses: bool) -> None:
    ended = threading.Event()

    def fails(connection: socket.socket, _: GetData) -> None:
        ended.set()
        if not refuses:
            raise ProtocolError("gone")
        send_reply(connection, Reply(error="no such state"))

    def waits(connection: socket.socket, request: GetData) -> None:
        ended.wait(60)  # so that the other one is asked at all
        whole(connection, request)

    answers: list[Answer] = [waits, waits]
    answers[number] = fails
    with pytest.raises(SnapshotError if refuses else (OSError, DeadpoolError)), fetched(AVault(answers), 1):
        pass
