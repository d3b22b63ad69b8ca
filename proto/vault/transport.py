"""What a transport of replicas (H2H) is at both ends of an edge. TCP is one: the bytes come over the connection of the request.

The sender's end is ReplicaSender, the holder's is Arrival. A transport may move the bytes from one slot's file to the other's
without either end's process touching them; the requests, tables and header pages always travel as in wire.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.wire import Put


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPart:
    """Bytes of a slot: mapped here (`view`), and where in the slot's file they lie, for a process that reads them there.

    `to_offset`: their place in the replica's data.
    """

    path: Path
    offset: int
    view: memoryview
    to_offset: int


class Outgoing(Protocol):
    """A state on its way to the holders, perhaps while it is still being copied into the rank's own slot."""

    request: Put
    layout: bytes  # the first part of the tables

    def whole(self) -> Sequence[memoryview] | None:
        """Returns all of the replica's data, one after the other, if it is in the slot and so small that it is best sent without
        a question; None: it is not.
        """

    def parts(self, held: StateId) -> Iterator[SlotPart]:
        """Yields what the holder needs, in rising order, each part once it is in the slot. `held`: the state that lies there
        (its step is NO_STEP when there is none).

        SnapshotError: the state has turned out not to be one; nothing of it may be sealed.
        """

    def tail(self) -> tuple[bytes, bytes]:
        """Returns what follows the parts: the rest of the tables, and the header page."""


class ReplicaSender(Protocol):
    """A rank's way to one holder's vault. Errors are UnavailableError (out of reach) or SnapshotError (it refuses)."""

    def reserve(self, rank: int, slot_bytes: int) -> None: ...

    def put(self, outgoing: Outgoing) -> int:
        """Returns how many bytes of data have travelled, once the holder has verified and sealed the replica."""

    def close(self) -> None:
        """Ends what is under way; any thread. No call succeeds afterwards."""


class Arrival(Protocol):
    """How the data of one sender's replicas come to the holder: `begin`, `fill` for the bytes of each part in order, `end`."""

    def begin(self, put: Put, path: Path) -> None:
        """The data go to their offset in the file of an unsealed slot, which the caller alone may write otherwise.

        ProtocolError, OSError: they cannot come; nobody writes there then.
        """

    def fill(self, target: memoryview) -> None:
        """Returns once the next len(target) bytes lie in `target`, that place mapped. ProtocolError, OSError: they will not."""

    def interrupt(self) -> None:
        """Has `fill` raise; any thread."""

    def end(self, *, complete: bool) -> None:
        """Returns once nobody writes to that place any more. Called after each `begin`; `complete`: all that was to come has."""
