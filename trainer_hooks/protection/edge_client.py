"""H2H by MPI, the trainer's side: has the pair of the edge to a holder carry the replicas, and TCP where there is none just now.

A pair that is not there, has died, or does not show that it lives costs no state its protection: the same call goes by TCP, and
the next ones do until the agent has started another pair. So does what is fetched in a recovery: a pair would start too late.
"""

import contextlib
import logging
import os
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from deadpool.host.errors import ProtocolError, UnavailableError
from deadpool.proto.frames import to_frame
from deadpool.proto.messages import NO_STEP, Endpoint
from deadpool.proto.vault.edge import FRAME_BYTES_MAX, STALL_S, connect_in, edge_name, receive_frame
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import Outgoing, ReplicaSender, SlotPart
from deadpool.proto.vault.wire import Put, send_request

log = logging.getLogger(__name__)
_PEER = struct.Struct("iII")  # SO_PEERCRED: pid, uid, gid


class EdgeClient:
    """`otherwise`: the way by TCP. For the protect thread; `close` for any."""

    def __init__(self, vault_dir: Path, endpoint: Endpoint, otherwise: ReplicaSender) -> None:
        self._vault_dir, self._endpoint, self._otherwise = vault_dir, endpoint, otherwise
        self._connection: socket.socket | None = None
        self._closed = False

    def reserve(self, rank: int, slot_bytes: int) -> None:
        self._otherwise.reserve(rank, slot_bytes)

    def put(self, outgoing: Outgoing) -> int:
        """All of the state travels, once it is copied: a pair leaves nothing as it lies at the holder."""
        request = outgoing.request
        parts = list(outgoing.parts(StateId(generation=0, step=NO_STEP)))
        rest, page = outgoing.tail()
        if self._by_pair(request, _where(parts, request.data_bytes), outgoing.layout + rest + page):
            return request.data_bytes
        return self._otherwise.put(outgoing)

    def close(self) -> None:
        self._closed = True
        self._drop()
        self._otherwise.close()

    def _by_pair(self, request: Put, where: bytes, rest: bytes) -> bool:
        """Returns whether a pair has carried the replica, and the holder has sealed it."""
        connection = self._connected() if request.data_bytes and len(where) <= FRAME_BYTES_MAX else None
        if connection is None:
            return False
        try:
            send_request(connection, request)
            connection.sendall(where + rest)
            while "busy" in (reply := receive_frame(connection)):
                pass
        except TimeoutError:  # the sender is frozen
            _kill(connection)
            reply = {"error": f"silent for {connection.gettimeout():g} s"}
        except (OSError, ProtocolError, ValueError) as error:  # it has died, or was closed by another thread
            reply = {"error": str(error)}
        if not reply["error"]:
            return True
        self._drop()
        if self._closed:
            raise UnavailableError("closed")
        log.info("the MPI pair to %s: %s; by TCP", self._endpoint.node_id, reply["error"])  # a refusal it will hear again there
        return False

    def _connected(self) -> socket.socket | None:
        if self._connection is None and not self._closed:
            with contextlib.suppress(OSError):
                self._connection = connect_in(self._vault_dir, edge_name(self._endpoint.node_id), STALL_S)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _where(parts: Sequence[SlotPart], data_bytes: int) -> bytes:
    """Returns the frame that says where the data lie, with what lies between the items. All parts are of one file."""
    file = str(parts[0].path) if parts else ""
    ends = [*(part.to_offset for part in parts[1:]), data_bytes]
    ranges = [(part.offset, end - part.to_offset) for part, end in zip(parts, ends, strict=False)]
    return to_frame({"file": file, "ranges": ranges})


def _kill(sender: socket.socket) -> None:
    """Ends a sender that does not move; its agent starts another pair."""
    pid, _, _ = _PEER.unpack(sender.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
