"""What a transport of replicas (H2H) is at both ends of an edge. TCP is one: the bytes come over the connection of the request.

The sender's end is ReplicaSender, the holder's is Arrival. A transport may move the bytes from one slot's file to the other's
without either end's process touching them; the requests, tables and header pages always travel as in wire.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deadpool.proto.vault.wire import Put


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPart:
    """Bytes of a slot: mapped here (`view`), and where in the slot's file they lie, for a process that reads them there."""

    path: Path
    offset: int
    view: memoryview


class ReplicaSender(Protocol):
    """A rank's way to one holder's vault. Errors are UnavailableError (out of reach) or SnapshotError (it refuses)."""

    def reserve(self, rank: int, slot_bytes: int) -> None: ...

    def put(self, request: Put, parts: list[SlotPart], tables: bytes, page: bytes) -> None:
        """Returns once the holder has verified and sealed the replica. `parts` add up to request.data_bytes."""

    def close(self) -> None:
        """Ends what is under way; any thread. No call succeeds afterwards."""


class Arrival(Protocol):
    """How the data of one sender's replicas come to the holder: `begin`, `fill` from the first to the last byte, `end`."""

    def begin(self, path: Path, offset: int, size_bytes: int) -> None:
        """The data go to this place in the file of an unsealed slot, which the caller alone may write otherwise."""

    def fill(self, target: memoryview) -> None:
        """Returns once the next len(target) bytes lie in `target`, that place mapped. ProtocolError, OSError: they will not."""

    def interrupt(self) -> None:
        """Has `fill` raise; any thread."""

    def end(self) -> None:
        """Returns once nobody writes to that place any more, whether all has come or not. Called after each `begin`."""
