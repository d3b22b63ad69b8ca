"""The sender of an MPI pair: takes its node's ranks' requests to write a replica, and reads the data from their slots."""

import contextlib
import dataclasses
import json
import mmap
import select
import socket
import time
from pathlib import Path
from typing import Any

from deadpool.agent.edges.transfer import CHUNK_BYTES, HERE_EVERY_S, Transfer
from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import receive_exactly, to_frame
from deadpool.proto.vault.edge import (
    BUSY_EVERY_S,
    STALL_S,
    Mappings,
    chunks_of,
    edge_name,
    listen_in,
    pieces_in,
    receive_frame,
)
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
        try:
            held = Reply(**{name: begun[name] for name in ("held_generation", "held_step", "layout_held")})
            send_reply(client, held)
            self._await(client)
            where = receive_frame(client)
            rest = receive_exactly(client, put.tables_bytes + HEADER_BYTES - held.layout_held * put.layout_bytes)
            pieces = pieces_in(where.get("pieces"), put.data_bytes)
            memory = self._mappings.of(Path(str(where.get("file")))) if pieces else memoryview(b"")
            if any(each.offset + each.size_bytes > len(memory) for each in pieces):
                raise ProtocolError("the pieces do not lie in the file")
        except (ProtocolError, OSError):
            self._transfer.send_frame({"given_up": True})
            with contextlib.suppress(ProtocolError):
                self._answer()
            raise
        listed = json.dumps(pieces).encode()
        self._transfer.send_frame({"listed_bytes": len(listed)})
        self._transfer.send(iter([*slices_of(memoryview(listed)), *slices_of(memoryview(rest))]))
        answer = self._answer()
        if answer["error"]:
            return Reply(error=str(answer["error"]))
        chunks = chunks_of(pieces, CHUNK_BYTES)
        self._transfer.send(memory[each.offset : each.offset + each.size_bytes] for each in chunks)
        return Reply(error=str(self._answer()["error"]))

    def _await(self, client: socket.socket) -> None:
        """Returns when the rank says something, which it does immediately; ProtocolError when it is stopped."""
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


def slices_of(memory: memoryview, slice_bytes: int = CHUNK_BYTES) -> list[memoryview]:
    return [memory[begin : begin + slice_bytes] for begin in range(0, len(memory), slice_bytes)]
