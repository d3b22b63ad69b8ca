"""H2H, the trainer's side: sends the unique part of a snapshot to its holders and fetches states from them.

One connection to each holder for the life of a generation, opened when first needed and again after an error: an agent that
was restarted costs a retry. More of them carry a state's data where one does not fill the link (connections.py): they are opened
and end together. Blocking sockets, used by one thread at a time; `close` (any thread) ends what is under way.
"""

import contextlib
import dataclasses
import logging
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from deadpool.host.errors import DeadpoolError, SnapshotError, UnavailableError
from deadpool.proto.frames import receive_exactly
from deadpool.proto.messages import Endpoint, SlotKind
from deadpool.proto.secret import prove_as_client
from deadpool.proto.vault.holdings import SlotHoldings, from_json
from deadpool.proto.vault.layout import HEADER_BYTES, Header, Tables, checksum
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import Outgoing
from deadpool.proto.vault.wire import (
    Discard,
    GetData,
    GetHead,
    GetHoldings,
    JoinData,
    Put,
    Reply,
    Request,
    ReserveSlots,
    receive_into,
    receive_reply,
    send_end_of_pieces,
    send_request,
    send_whole,
)
from deadpool.trainer_hooks.protection.connections import Connections, to_fetch
from deadpool.trainer_hooks.protection.shared_fetch import SharedFetch
from deadpool.trainer_hooks.protection.striped import Striped

log = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 10.0
STEP_BYTES = 512 << 10  # received and then read again, which finds it in the cache
STRIPE_BYTES = 256 << 10  # less than what the kernel takes for a connection at once: all of them are kept at work
SEVERAL_BYTES = 1 << 20  # a smaller state travels over one connection, whatever was asked for


class VaultClient:
    """A connection to one agent's vault. Errors are UnavailableError (the peer is gone) or SnapshotError (it refused)."""

    def __init__(self, endpoint: Endpoint, token: str, connections: int = 1) -> None:
        self.endpoint, self._token = endpoint, token
        self._wanted, self._connections = connections, Connections(connections)
        self._round_trip_s = 0.0  # as long as it took to connect, last
        self._socket: socket.socket | None = None
        self._more: list[socket.socket] = []  # that carry the data of what is put as well
        self._group = ""
        self._layout_held = (0, 0)  # checksum and size of the one that was acknowledged last, over this very connection
        self._closed = False

    def reserve(self, rank: int, slot_bytes: int) -> None:
        self._ask(ReserveSlots(rank=rank, slot_bytes=slot_bytes))

    def put(self, outgoing: Outgoing) -> int:
        """Writes a replica and returns how many bytes of data that took, once the holder has verified and sealed it."""
        sent_bytes, began_s = 0, 0.0
        with self._connection() as connection:
            put = self._over_several(outgoing.request)
            if put.connections == 1 and (data := outgoing.whole()) is not None:
                return self._put_whole(connection, put, outgoing, data)
            send_request(connection, put)
            begun = self._checked(connection)
            held = StateId(generation=begun.held_generation, step=begun.held_step)
            striped = Striped([connection, *self._more[: put.connections - 1]], put, CONNECT_TIMEOUT_S)
            behind = b"" if begun.layout_held else outgoing.layout
            for part in outgoing.parts(held):
                began_s = began_s or time.monotonic()
                striped.send_piece(part.to_offset, part.view, behind=behind)
                sent_bytes, behind = sent_bytes + len(part.view), b""
            if behind:
                connection.sendall(behind)
            send_end_of_pieces(connection, *outgoing.tail())
            self._checked(connection)
        self._connections.took(sent_bytes, time.monotonic() - began_s)
        return sent_bytes

    def _put_whole(self, connection: socket.socket, put: Put, outgoing: Outgoing, data: Sequence[memoryview]) -> int:
        known = self._layout_held == (put.layout_checksum, put.layout_bytes)
        put = dataclasses.replace(put, whole=1, with_layout=int(not known))
        send_whole(connection, put, b"" if known else outgoing.layout, data, outgoing.tail())
        self._checked(connection)
        self._layout_held = put.layout_checksum, put.layout_bytes
        return put.data_bytes

    def head(self, kind: SlotKind, rank: int, generation: int, step: int) -> tuple[Header, Tables]:
        """Returns header and tables of a sealed slot, their checksums verified."""
        with self._connection() as connection:
            send_request(connection, GetHead(kind=kind, rank=rank, generation=generation, step=step))
            raw = receive_exactly(connection, self._checked(connection).raw_bytes)
        header = Header.from_page(raw[:HEADER_BYTES])
        if header is None:
            raise SnapshotError(f"{self.endpoint.node_id}: {kind} of rank {rank} step {step} is torn")
        return header, Tables.from_bytes(header, raw[HEADER_BYTES:])

    def data(self, kind: SlotKind, rank: int, generation: int, step: int, parts: Sequence[tuple[int, memoryview]]) -> list[int]:
        """Fills each part's memory from its offset in the slot's data; returns the checksum of each, as it is in that memory."""
        targets = [target for _, target in parts]
        request = GetData(kind=kind, rank=rank, generation=generation, step=step, ranges=())
        with self._connection() as connection:
            number = to_fetch(self._wanted, self._round_trip_s)
            if number > 1 and sum(map(len, targets)) >= SEVERAL_BYTES:
                SharedFetch(request, parts, self._checked).run(connection, number - 1, self._connected)
                return [checksum(target) for target in targets]
            ranges = tuple((offset, len(target)) for offset, target in parts)
            send_request(connection, dataclasses.replace(request, ranges=ranges))
            self._checked(connection)
            return _receive(connection, targets)

    def discard(self, kind: SlotKind, rank: int, generation: int, step: int) -> None:
        """Has the vault check a slot that arrived with other bytes than it should have; it unseals it when it is bad there."""
        self._ask(Discard(kind=kind, rank=rank, generation=generation, step=step))

    def holdings(self) -> tuple[SlotHoldings, ...]:
        """Returns what each sealed slot of this vault holds."""
        with self._connection() as connection:
            send_request(connection, GetHoldings())
            return from_json(receive_exactly(connection, self._checked(connection).raw_bytes))

    def close(self) -> None:
        """Ends the connection, also under a call in another thread. No call succeeds afterwards."""
        self._closed = True
        self._drop()

    def _ask(self, request: Request) -> None:
        with self._connection() as connection:
            send_request(connection, request)
            self._checked(connection)

    def _checked(self, connection: socket.socket) -> Reply:
        reply = receive_reply(connection)
        if reply.error:
            raise SnapshotError(f"{self.endpoint.node_id}: {reply.error}")
        return reply

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        try:
            if self._closed:
                raise UnavailableError("closed")
            if self._socket is None:
                self._socket, self._group = self._connected(), secrets.token_hex(16)
            yield self._socket
        except SnapshotError:
            self._drop()
            raise
        except (OSError, ValueError, DeadpoolError) as error:
            self._drop()
            raise UnavailableError(f"vault of {self.endpoint.node_id}: {error}") from error

    def _connected(self) -> socket.socket:
        began_s = time.monotonic()
        connection = socket.create_connection((self.endpoint.host, self.endpoint.port), CONNECT_TIMEOUT_S)
        self._round_trip_s = time.monotonic() - began_s
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            prove_as_client(connection, self._token)
        except BaseException:
            connection.close()
            raise
        return connection

    def _over_several(self, put: Put) -> Put:
        """Returns the request with the connections that are to carry it, all of which are open then."""
        number = self._connections.number
        if number == 1 or put.data_bytes < SEVERAL_BYTES:
            return put
        try:
            self._open(number)
        except (OSError, DeadpoolError):
            self._connections.failed()
            raise
        return dataclasses.replace(put, group=self._group, connections=number, stripe_bytes=STRIPE_BYTES)

    def _open(self, number: int) -> None:
        """Opens what is missing, side by side: each takes some round trips. All of them, or none."""
        missing = range(len(self._more) + 1, number)
        if not missing:
            return
        with ThreadPoolExecutor(len(missing)) as threads:
            opening = [threads.submit(self._joined, index) for index in missing]
        if any(each.exception() for each in opening):
            for each in opening:
                if not each.exception():
                    each.result().close()
        self._more += [each.result() for each in opening]

    def _joined(self, index: int) -> socket.socket:
        connection = self._connected()
        try:
            send_request(connection, JoinData(group=self._group, index=index))
            self._checked(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        connections = [each for each in (self._socket, *self._more) if each is not None]
        self._socket, self._more, self._layout_held = None, [], (0, 0)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _receive(connection: socket.socket, parts: Iterable[memoryview]) -> list[int]:
    """Fills the parts, and returns the checksum of each."""
    sums = []
    for target in parts:
        total = xxhash.xxh3_64()
        for begin in range(0, len(target), STEP_BYTES):
            step = target[begin : begin + STEP_BYTES]
            receive_into(connection, step)
            total.update(step)
        sums.append(total.intdigest())
    return sums
