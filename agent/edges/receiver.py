"""The receiver of an MPI pair: passes requests on to its node's agent, and writes the data into the slot that this names."""

import contextlib
import json
import mmap
import select
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from deadpool.agent.edges.sender import slices_of
from deadpool.agent.edges.transfer import CHUNK_BYTES, SILENCE_S, Transfer
from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import to_frame
from deadpool.proto.vault.edge import (
    BUSY_EVERY_S,
    STALL_S,
    VAULT_SOCKET,
    Mappings,
    Piece,
    chunks_of,
    connect_in,
    pieces_in,
    receive_frame,
)
from deadpool.proto.vault.wire import Put, send_end_of_pieces, send_piece_header, send_request


class EdgeReceiver:
    def __init__(self, transfer: Transfer, vault: Path, silence_s: float = SILENCE_S) -> None:
        self._transfer, self._vault, self._silence_s = transfer, vault, silence_s
        self._agent: socket.socket | None = None  # for requests; the agent closes it after one that has failed
        self._mappings = Mappings(mmap.ACCESS_WRITE)
        self._landing: _WrittenSlot | None = None
        transfer.between_polls(self._look)

    def serve(self) -> NoReturn:
        """UnavailableError: the sender is frozen or gone, or the agent is gone."""
        while True:
            request = self._transfer.receive_frame(self._silence_s)
            if "put" not in request:
                continue
            answer: dict[str, object]
            try:
                answer = {"error": self._put(Put(**request["put"]))}
            except (ProtocolError, OSError) as error:
                answer = {"lost": f"at the receiver: {error}"}
            if answer != {"error": ""} and self._agent is not None:
                self._agent.close()
                self._agent = None
            self._transfer.send_frame(answer)

    def _put(self, put: Put) -> str:
        """Returns why the agent has refused the replica, "" once it is sealed. ProtocolError, OSError: nobody has refused it."""
        agent = self._connection()
        send_request(agent, put)
        begun = self._heard()
        if begun["error"]:
            return str(begun["error"])
        self._transfer.send_frame(begun)
        agent.sendall(self._block())
        answer = self._heard()
        if "file" not in answer:
            return str(answer["error"])
        landing = _WrittenSlot(agent, self._mappings.of(Path(str(answer["file"]))), int(str(answer["offset"])))
        self._transfer.send_frame({"error": ""})
        self._landing = landing
        try:
            while pieces := pieces_in(json.loads(self._block()), put.data_bytes):
                self._transfer.receive(landing.places(pieces), landing.landed)
            tail = self._block()
        finally:
            self._landing = None
        if landing.stopped:
            raise ProtocolError("interrupted by the agent")
        send_end_of_pieces(agent)
        agent.sendall(tail)
        return str(self._heard()["error"])

    def _block(self) -> bytearray:
        """Returns the next bytes of the sender's; ProtocolError: the rank has given this replica up."""
        told = self._transfer.receive_frame(self._silence_s)
        if "given_up" in told:
            raise ProtocolError("the rank has gone")
        block = bytearray(int(told["bytes"]))
        self._transfer.receive(iter(slices_of(memoryview(block))))
        return block

    def _look(self) -> None:
        """Between two polls: while nothing comes, the agent may want the slot for itself."""
        if self._landing is not None:
            self._landing.look()

    def _connection(self) -> socket.socket:
        if self._agent is None:
            self._agent = connect_in(self._vault, VAULT_SOCKET, STALL_S)
            self._agent.settimeout(None)
        return self._agent

    def _heard(self) -> dict[str, Any]:
        """Returns what the agent says, telling the sender meanwhile that this process lives. However long the agent may take."""
        connection = self._connection()
        while not select.select([connection], [], [], BUSY_EVERY_S)[0]:
            self._transfer.send_frame({"busy": True})
        return receive_frame(connection)


class _WrittenSlot:
    """Where one replica's data come to. Once it is stopped they come to nowhere: the slot is the agent's alone again."""

    def __init__(self, agent: socket.socket, memory: memoryview, offset: int) -> None:
        self._agent, self._memory, self._offset = agent, memory, offset
        self._posted = self._landed = 0  # bytes of the slot
        self._coming: deque[tuple[int, Piece | None]] = deque()  # bytes of the chunks; of which piece the first one is
        self.stopped = False

    def places(self, pieces: Sequence[Piece]) -> Iterator[memoryview]:
        """Yields the place of each chunk, in order."""
        for piece in pieces:
            for chunk in chunks_of([piece], CHUNK_BYTES):
                self.look()
                if self.stopped:
                    yield memoryview(bytearray(chunk.size_bytes))
                    continue
                self._posted += chunk.size_bytes
                self._coming.append((chunk.size_bytes, piece if chunk.to_offset == piece.to_offset else None))
                begin = self._offset + chunk.to_offset
                yield self._memory[begin : begin + chunk.size_bytes]

    def look(self) -> None:
        """Stops once the agent has closed its half of the connection."""
        if not self.stopped and select.select([self._agent], [], [], 0)[0]:
            self.stopped = True
            self._close_if_stopped()

    def landed(self) -> None:
        """The next chunk has come."""
        if self._coming:
            size_bytes, begun = self._coming.popleft()
            self._landed += size_bytes
            with contextlib.suppress(OSError):  # then it is gone, and this process with it
                if begun is not None:
                    send_piece_header(self._agent, begun.to_offset, begun.size_bytes)
                self._agent.sendall(to_frame({"landed": self._landed}))
            self._close_if_stopped()

    def _close_if_stopped(self) -> None:
        if self.stopped and self._landed == self._posted:
            with contextlib.suppress(OSError):
                self._agent.shutdown(socket.SHUT_WR)
