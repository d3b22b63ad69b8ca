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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from deadpool.host.errors import ProtocolError, SnapshotError, UnavailableError
from deadpool.proto.frames import to_frame
from deadpool.proto.messages import Endpoint
from deadpool.proto.vault.edge import STALL_S, Piece, connect_in, edge_name, receive_frame
from deadpool.proto.vault.layout import aligned
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import Outgoing, ReplicaSender, SlotPart
from deadpool.proto.vault.wire import send_request

log = logging.getLogger(__name__)
_BATCH_BYTES, _BATCH_PIECES = 4 << 20, 4096  # with so much in the slot the pair hears of it: a frame has 1 MB at most
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
        """A pair carries one rank's state after another's, each from the beginning of its copy on."""
        sent_bytes = self._by_pair(outgoing)
        return self._otherwise.put(outgoing) if sent_bytes is None else sent_bytes

    def close(self) -> None:
        self._closed = True
        self._drop()
        self._otherwise.close()

    def _by_pair(self, outgoing: Outgoing) -> int | None:
        """Returns how many bytes a pair has carried, once the holder has sealed the replica; None when there is no such pair.

        SnapshotError: the holder refuses.
        """
        connection = self._connected()
        if connection is None:
            return None
        try:
            send_request(connection, outgoing.request)
            begun = self._answer(connection)
            held = StateId(generation=int(str(begun["held_generation"])), step=int(str(begun["held_step"])))
            if not begun["layout_held"]:
                connection.sendall(outgoing.layout)
            self._answer(connection)
            sent_bytes = 0
            for parts in _batches(outgoing.parts(held)):
                connection.sendall(_where(parts))
                sent_bytes += sum(len(part.view) for part in parts)
            connection.sendall(b"".join((_where([]), *outgoing.tail())))
            self._answer(connection)
            return sent_bytes
        except SnapshotError:
            self._drop()
            raise
        except TimeoutError:  # the sender is frozen
            _kill(connection)
            reason = f"silent for {connection.gettimeout():g} s"
        except (OSError, ProtocolError, ValueError) as error:  # it has died, or was closed by another thread
            reason = str(error)
        self._drop()
        if self._closed:
            raise UnavailableError("closed")
        log.info("the MPI pair to %s: %s; by TCP", self._endpoint.node_id, reason)
        return None

    def _answer(self, sender: socket.socket) -> dict[str, object]:
        """Returns the holder's next reply, however long the pair is at work. SnapshotError: it is a refusal."""
        while "busy" in (reply := receive_frame(sender)):
            pass
        if reply["error"]:
            raise SnapshotError(f"{self._endpoint.node_id}: {reply['error']}")
        return reply

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


def _batches(parts: Iterable[SlotPart]) -> Iterator[Sequence[SlotPart]]:
    """Yields the parts, as many together as are worth a frame."""
    batch: list[SlotPart] = []
    size_bytes = 0
    for part in parts:
        batch.append(part)
        size_bytes += len(part.view)
        if size_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _where(parts: Iterable[SlotPart]) -> bytes:
    """Returns the frame that says what lies in the slot; all parts are of one file. No parts: that was all."""
    pieces: list[Piece] = []
    file = ""
    for part in parts:
        file, before = str(part.path), pieces[-1] if pieces else None
        if before is not None and _adjoin(before, part):
            pieces[-1] = before._replace(size_bytes=part.to_offset + len(part.view) - before.to_offset)
        else:
            pieces.append(Piece(part.to_offset, part.offset, len(part.view)))
    return to_frame({"file": file, "pieces": pieces})


def _adjoin(piece: Piece, part: SlotPart) -> bool:
    """Whether nothing lies between them, neither here nor there, but what aligns an item."""
    end = piece.to_offset + piece.size_bytes
    return part.to_offset in (end, aligned(end)) and part.to_offset - piece.to_offset == part.offset - piece.offset


def _kill(sender: socket.socket) -> None:
    """Ends a sender that does not move; its agent starts another pair."""
    pid, _, _ = _PEER.unpack(sender.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
