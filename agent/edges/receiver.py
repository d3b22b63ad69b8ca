"""The receiver of an MPI pair: passes requests on to its node's agent, and writes the data into the slot that this names."""

import contextlib
import mmap
import select
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from deadpool.agent.edges.sender import pieces_of
from deadpool.agent.edges.transfer import CHUNK_BYTES, SILENCE_S, Transfer
from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import to_frame
from deadpool.proto.vault.edge import BUSY_EVERY_S, STALL_S, VAULT_SOCKET, Mappings, connect_in, receive_frame
from deadpool.proto.vault.layout import HEADER_BYTES
from deadpool.proto.vault.wire import Put, send_end_of_pieces, send_piece_header, send_request


class EdgeReceiver:
    def __init__(self, transfer: Transfer, vault: Path, silence_s: float = SILENCE_S) -> None:
        self._transfer, self._vault, self._silence_s = transfer, vault, silence_s
        self._agent: socket.socket | None = None  # for requests; the agent closes it after one that has failed
        self._mappings = Mappings(mmap.ACCESS_WRITE)

    def serve(self) -> NoReturn:
        """UnavailableError: the sender is frozen or gone, or the agent is gone."""
        while True:
            request = self._transfer.receive_frame(self._silence_s)
            if "put" not in request:
                continue
            try:
                error = self._put(Put(**request["put"]))
            except (ProtocolError, OSError) as lost:
                error = f"the agent's connection: {lost}"
            if error and self._agent is not None:
                self._agent.close()
                self._agent = None
            self._transfer.send_frame({"error": error})

    def _put(self, put: Put) -> str:
        """Returns why the replica is not sealed, "" when it is."""
        rest = bytearray(put.tables_bytes + HEADER_BYTES)
        self._transfer.receive(iter(pieces_of(memoryview(rest))))
        agent = self._connection()
        send_request(agent, put)
        if error := self._heard()["error"]:
            return str(error)
        agent.sendall(rest[: put.layout_bytes])
        send_piece_header(agent, 0, put.data_bytes)
        answer = self._heard()
        if "file" not in answer:
            return str(answer["error"])
        landing = _WrittenSlot(self._connection(), self._mappings.of(Path(str(answer["file"]))), int(str(answer["offset"])))
        self._transfer.send_frame({"go": True})
        self._transfer.receive(landing.places(put.data_bytes), landing.landed)
        if landing.stopped:
            return "interrupted by the agent"
        send_end_of_pieces(agent)
        agent.sendall(rest[put.layout_bytes :])
        return str(self._heard()["error"])

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
        self._sizes: deque[int] = deque()  # of the pieces that are to land there
        self.stopped = False

    def places(self, size_bytes: int) -> Iterator[memoryview]:
        """Yields the place of each piece, in order."""
        for begin in range(0, size_bytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, size_bytes - begin)
            if not self.stopped and select.select([self._agent], [], [], 0)[0]:  # it has closed its half
                self.stopped = True
                self._tell_if_stopped()
            if self.stopped:
                yield memoryview(bytearray(size))
                continue
            self._posted += size
            self._sizes.append(size)
            yield self._memory[self._offset + begin : self._offset + begin + size]

    def landed(self) -> None:
        """The next piece has come."""
        if self._sizes:
            self._landed += self._sizes.popleft()
            self._tell({"landed": self._landed})
            self._tell_if_stopped()

    def _tell_if_stopped(self) -> None:
        if self.stopped and self._landed == self._posted:
            self._tell({"stopped": True})

    def _tell(self, fields: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # then it is gone, and this process with it
            self._agent.sendall(to_frame(fields))
