"""The sender of an MPI pair: takes its node's ranks' requests to write a replica, and reads the data from their slots."""

import contextlib
import dataclasses
import json
import mmap
import select
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deadpool.agent.edges.transfer import CHUNK_BYTES, HERE_EVERY_S, Transfer
from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import receive_exactly, to_frame
from deadpool.proto.vault.edge import (
    BUSY_EVERY_S,
    STALL_S,
    Mappings,
    Piece,
    chunks_of,
    edge_name,
    listen_in,
    pieces_in,
    receive_frame,
)
from deadpool.proto.vault.layout import HEADER_BYTES
from deadpool.proto.vault.wire import Put, Reply, receive_request, send_reply

_BATCH_BYTES = 16 * CHUNK_BYTES  # carried before the rank is heard again


class EdgeSender:
    """Listens from the start on; serves one request after another, whichever rank's it is."""

    def __init__(self, transfer: Transfer, vault: Path, holder: str) -> None:
        self._transfer = transfer
        transfer.between_polls(self._say_busy)
        path = vault / edge_name(holder)
        path.unlink(missing_ok=True)  # of the pair before
        self._listener = listen_in(vault, path.name)
        self._clients: list[socket.socket] = []
        self._mappings = Mappings(mmap.ACCESS_READ)
        self._busy_said_s = 0.0

    def serve(self, agent: socket.socket) -> None:
        """Returns when the agent is gone. UnavailableError: the receiver is frozen."""
        while True:
            ready, _, _ = select.select([agent, self._listener, *self._clients], [], [], HERE_EVERY_S)
            if not ready:
                self._transfer.send_frame({"here": True})
            if agent in ready:
                return
            for connection in ready:
                if connection is self._listener:
                    client, _ = self._listener.accept()
                    client.settimeout(STALL_S)
                    self._clients.append(client)
                else:
                    self._serve(connection)

    def _serve(self, client: socket.socket) -> None:
        try:
            request = receive_request(client)
            if isinstance(request, Put):
                send_reply(client, self._put(client, request))
                return
        except (ProtocolError, OSError):  # the rank has closed it, or does not read
            pass
        self._clients.remove(client)
        client.close()

    def _put(self, client: socket.socket, put: Put) -> Reply:
        self._transfer.send_frame({"put": dataclasses.asdict(put)})
        begun = self._answer()
        if begun["error"]:
            return Reply(error=str(begun["error"]))
        held = Reply(**{name: begun[name] for name in ("held_generation", "held_step", "layout_held")})
        with self._or_given_up():
            send_reply(client, held)
            layout = b"" if held.layout_held else self._bytes_of(client, put.layout_bytes)
        self._send_block(layout)
        answer = self._answer()
        if answer["error"]:
            return Reply(error=str(answer["error"]))
        with self._or_given_up():
            send_reply(client, Reply())
        for memory, pieces in self._batches(client, put):
            self._send_block(json.dumps(pieces).encode())
            chunks = chunks_of(pieces, CHUNK_BYTES)
            self._transfer.send(memory[each.offset : each.offset + each.size_bytes] for each in chunks)
        with self._or_given_up():
            tail = self._bytes_of(client, put.tables_bytes - put.layout_bytes + HEADER_BYTES)
        self._send_block(json.dumps([]).encode())
        self._send_block(tail)
        return Reply(error=str(self._answer()["error"]))

    def _batches(self, client: socket.socket, put: Put) -> Iterator[tuple[memoryview, Sequence[Piece]]]:
        """Yields the slot's memory, and which pieces the rank says lie there: as many as it has said by then."""
        is_last = False
        while not is_last:
            pieces: list[Piece] = []
            memory = memoryview(b"")
            with self._or_given_up():
                self._await(client)
                while not is_last and _size_bytes(pieces) < _BATCH_BYTES and select.select([client], [], [], 0)[0]:
                    where = receive_frame(client)
                    more = pieces_in(where.get("pieces"), put.data_bytes)
                    is_last = not more
                    if more:
                        memory = self._mappings.of(Path(str(where.get("file"))))
                        pieces += more
                if any(each.offset + each.size_bytes > len(memory) for each in pieces):
                    raise ProtocolError("the pieces do not lie in the file")
            if pieces:
                yield memory, pieces

    def _bytes_of(self, client: socket.socket, size_bytes: int) -> bytes:
        self._await(client)
        return receive_exactly(client, size_bytes)

    def _send_block(self, block: bytes) -> None:
        self._transfer.send_frame({"bytes": len(block)})
        self._transfer.send(iter(slices_of(memoryview(block))))

    @contextlib.contextmanager
    def _or_given_up(self) -> Iterator[None]:
        """Inside, the rank is heard: where it has gone, or says what cannot be, the receiver expects no more of this replica."""
        try:
            yield
        except (ProtocolError, OSError):
            self._transfer.send_frame({"given_up": True})
            with contextlib.suppress(ProtocolError):
                self._answer()
            raise

    def _await(self, client: socket.socket) -> None:
        """Returns when the rank says something; ProtocolError when it is stopped: a copy goes on without a pause."""
        until_s = time.monotonic() + STALL_S
        while not select.select([client], [], [], BUSY_EVERY_S)[0]:
            self._say_busy()
            if time.monotonic() > until_s:
                raise ProtocolError("the rank is silent")

    def _answer(self) -> dict[str, Any]:
        """Returns the receiver's answer; it says from time to time that it is still at work. ProtocolError: it has no agent's."""
        while "busy" in (answer := self._transfer.receive_frame(STALL_S)):
            pass
        if "lost" in answer:
            raise ProtocolError(answer["lost"])
        return answer

    def _say_busy(self) -> None:
        """To the ranks that wait, between two polls: this process lives."""
        now_s = time.monotonic()
        if now_s - self._busy_said_s < BUSY_EVERY_S:
            return
        self._busy_said_s = now_s
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.send(to_frame({"busy": True}), socket.MSG_DONTWAIT)


def _size_bytes(pieces: Sequence[Piece]) -> int:
    return sum(each.size_bytes for each in pieces)


def slices_of(memory: memoryview, slice_bytes: int = CHUNK_BYTES) -> list[memoryview]:
    return [memory[begin : begin + slice_bytes] for begin in range(0, len(memory), slice_bytes)]
