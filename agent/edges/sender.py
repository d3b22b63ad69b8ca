"""The sender of an MPI pair: takes its node's ranks' requests to write a replica, and reads the data from their slots."""

import contextlib
import dataclasses
import mmap
import select
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from deadpool.agent.edges.transfer import CHUNK_BYTES, HERE_EVERY_S, Transfer
from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import receive_exactly, to_frame
from deadpool.proto.vault.edge import BUSY_EVERY_S, STALL_S, Mappings, edge_name, listen_in, receive_frame
from deadpool.proto.vault.layout import HEADER_BYTES
from deadpool.proto.vault.wire import Put, Reply, receive_request, send_reply


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
        self._gathered = [bytearray(CHUNK_BYTES), bytearray(CHUNK_BYTES)]
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
        where = receive_frame(client)
        rest = receive_exactly(client, put.tables_bytes + HEADER_BYTES)
        memory = self._mappings.of(Path(str(where["file"])))
        ranges = [(int(begin), int(size)) for begin, size in cast("list[list[int]]", where["ranges"])]
        if sum(size for _, size in ranges) != put.data_bytes or any(begin + size > len(memory) for begin, size in ranges):
            raise ProtocolError("the ranges are not the data")
        self._transfer.send_frame({"put": dataclasses.asdict(put)})
        self._transfer.send(iter(pieces_of(memoryview(rest))))
        answer = self._answer()
        if "go" not in answer:
            return Reply(error=str(answer["error"]))
        self._transfer.send(scattered_pieces(memory, ranges, self._gathered))
        return Reply(error=str(self._answer()["error"]))

    def _answer(self) -> dict[str, object]:
        """Returns the receiver's answer; it says from time to time that it is still at work."""
        while True:
            answer = self._transfer.receive_frame(STALL_S)
            if "busy" not in answer:
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


def scattered_pieces(
    memory: memoryview, ranges: Sequence[tuple[int, int]], gathered: Sequence[bytearray], piece_bytes: int = CHUNK_BYTES
) -> Iterator[memoryview]:
    """Yields the bytes of the ranges (offset, bytes) in pieces of the sizes that `pieces_of` gives: the memory itself where one
    lies in one range, else gathered in these buffers by turns.
    """
    left = [(begin, size) for begin, size in reversed(ranges) if size]
    turn = 0
    while left:
        begin, size = left.pop()
        taken = min(size, piece_bytes)
        if size > taken:
            left.append((begin + taken, size - taken))
        if taken == piece_bytes or not left:
            yield memory[begin : begin + taken]
            continue
        buffer, turn = memoryview(gathered[turn]), (turn + 1) % len(gathered)
        buffer[:taken] = memory[begin : begin + taken]
        filled = taken
        while left and filled < piece_bytes:
            begin, size = left.pop()
            taken = min(size, piece_bytes - filled)
            buffer[filled : filled + taken] = memory[begin : begin + taken]
            filled += taken
            if size > taken:
                left.append((begin + taken, size - taken))
        yield buffer[:filled]


def pieces_of(memory: memoryview, piece_bytes: int = CHUNK_BYTES) -> list[memoryview]:
    return [memory[begin : begin + piece_bytes] for begin in range(0, len(memory), piece_bytes)]
