"""A replica server with a vault behind it, replicas to send to it, and the client's side of the conversation."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deadpool.agent.vault.folder import Vault
from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.proto.messages import NO_STEP
from deadpool.proto.secret import make_token, prove_as_client
from deadpool.proto.vault.layout import Item, Layout, Tables, checksum, replica_of, slot_capacity
from deadpool.proto.vault.wire import (
    Discard,
    GetData,
    GetHead,
    GetHoldings,
    Put,
    Reply,
    ReserveSlots,
    piece_head,
    receive_into,
    receive_reply,
    send_end_of_pieces,
    send_piece,
    send_request,
    stripes,
)

TOKEN = make_token()
RANK = 3


class Replica:
    """A state of rank 3 with two unique items and a replicated one, ready to be sent."""

    def __init__(
        self, step: int, generation: int = 1, meta: bytes = b"meta", moment_bytes: int = 100_000, unique: bool = True
    ) -> None:
        items = [
            Item(key="weight", offset=0, nbytes=1000, dtype="float32", shape=(250,), peers=0),
            Item(key="moment", offset=0, nbytes=moment_bytes, dtype="float32", shape=(moment_bytes // 4,)),
            Item(key="step", offset=0, nbytes=8, dtype="int64", shape=()),
        ]
        layout = Layout.place(items if unique else items[:1], [(1, 2)])
        self._layout, self._meta, self._state = layout, meta, (generation, step)
        self.data = bytearray(os.urandom(layout.unique_bytes))
        self.reseal()

    def reseal(self) -> None:
        """Makes tables and header those of the data as they are now."""
        layout, (generation, step) = self._layout, self._state
        sums = tuple(checksum(bytes(self.data[each.offset : each.offset + each.nbytes])) for each in layout.items[:-1])
        tables = Tables(layout=layout, meta=self._meta, checksums=(*sums, 77))
        rest = tables.rest()
        self.tables = layout.to_bytes() + rest
        self.slot_bytes, data_offset = slot_capacity(layout.unique_bytes, len(layout.items), len(self._meta))
        header = tables.header(rest, rank=RANK, generation=generation, step=step, data_offset=data_offset)
        self.header = replica_of(header, layout)

    def put(self, keep_step: int = NO_STEP, sender_generation: int = 1, **fields: Any) -> Put:
        return Put(
            rank=RANK, generation=self.header.generation, step=self.header.step, keep_step=keep_step,
            data_offset=self.header.data_offset, data_bytes=len(self.data), layout_bytes=self.header.layout_bytes,
            tables_bytes=len(self.tables),
            sender_generation=sender_generation, **fields,
        )  # fmt: skip


class Receiver:
    def __init__(self, root: Path) -> None:
        self.vault = Vault.create(root, "job", "node0")
        self.server = ReplicaServer("127.0.0.1", TOKEN)
        self.server.start(self.vault.folder)
        self._connections: list[socket.socket] = []

    def connect(self, token: str = TOKEN) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=50.0)
        self._connections.append(connection)
        prove_as_client(connection, token)
        connection.settimeout(50.0)
        return connection

    def steps(self) -> set[int]:
        return {slot.step for slot in self.vault.slots()}

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.server.close()
        self.vault.remove()


@contextmanager
def serving(root: Path) -> Iterator[Receiver]:
    """Serves a new vault under `root`; afterwards no thread of the server is left."""
    receiver = Receiver(root)
    yield receiver
    receiver.close()
    join_threads()


def join_threads(*names: str) -> None:
    """Waits until no thread of a replica server is left, nor one whose name begins with one of `names`."""
    for thread in threading.enumerate():
        if thread.name.startswith(("replica-", *names)):
            thread.join(10.0)
            assert not thread.is_alive(), thread


def ask(connection: socket.socket, request: ReserveSlots | GetHead | GetData | Discard | GetHoldings) -> tuple[Reply, bytes]:
    send_request(connection, request)
    reply = receive_reply(connection)
    raw = bytearray(reply.raw_bytes)
    receive_into(connection, memoryview(raw))
    return reply, bytes(raw)


def send(connection: socket.socket, replica: Replica, keep_step: int = NO_STEP, sender_generation: int = 1) -> Reply:
    """Returns the last reply: an error that comes before any data, or what the holder makes of all of it."""
    send_request(connection, replica.put(keep_step, sender_generation))
    begun = receive_reply(connection)
    if begun.error:
        return begun
    send_all(connection, replica)
    return receive_reply(connection)


def spread(replica: Replica, put: Put) -> list[bytes]:
    """Returns what each connection carries of a replica that is sent whole; the first one, what else follows its Put."""
    cut, carried = replica.header.layout_bytes, [bytearray() for _ in range(put.connections)]
    carried[0] += replica.tables[:cut] + piece_head(0, len(replica.data))
    for index, part in stripes(memoryview(replica.data), 0, put):
        carried[index] += part
    carried[0] += piece_head(0, 0) + replica.tables[cut:] + replica.header.to_page()
    return [bytes(each) for each in carried]


def send_all(connection: socket.socket, replica: Replica) -> None:
    """Sends what follows a Put that was let in."""
    connection.sendall(replica.tables[: replica.header.layout_bytes])
    send_piece(connection, 0, memoryview(replica.data))
    send_end_of_pieces(connection)
    connection.sendall(replica.tables[replica.header.layout_bytes :])
    connection.sendall(replica.header.to_page())
