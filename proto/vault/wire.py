"""How vault data travels between nodes: requests and replies over one authenticated TCP connection (secret.py).

Raw bytes follow a frame (proto/frames.py) where the table says so.

| request                                   | raw bytes after it            | reply, raw bytes after it             |
|-------------------------------------------|-------------------------------|---------------------------------------|
| ReserveSlots: two replica slots for a rank     |                               | Reply                                 |
| Put: write a replica slot                 | see below                     | Reply, once verified and sealed (ack) |
| GetHead: a sealed slot's header, tables   |                               | Reply, header page + tables           |
| GetData: ranges of a sealed slot's data   |                               | Reply, the ranges, in order           |
| Discard: unseal a slot if it is bad       |                               | Reply                                 |
| GetHoldings: what all sealed slots hold   |                               | Reply, JSON (holdings.py)             |
| JoinData: carry a part of others' data    | see below                     | Reply                                 |

Several requests may follow each other on one connection. An error reply leaves the connection usable, except after Put,
where the server closes it.

A Put is answered twice: first with Reply.held, the sealed state in the slot that is written now, whose items need not travel when
they are the same in the new one. Then the sender says, while the state is still being copied into its own slot:

    layout (the first part of the tables), unless it is held | pieces | the rest of the tables | header page
    piece: offset in the data, size (uint64 each, little endian), bytes; offsets rise; a piece of 0 bytes is the last one

A small replica is sent *whole*: all of this follows its Put immediately, and the only answer is the one at the end. A refusal may
come before the holder has read all of it.

The bytes of the pieces may be spread over several connections; nothing else is. The client has opened the further ones before,
and said JoinData on each, with the group that its requests name. Byte p of all these bytes comes over connection
p / stripe_bytes mod connections, 0 being the one of the request. Whichever of them ends, all end, and with them the request.
A client that wants much asks for ranges of it over several connections, each by itself.

An item travels whole or not at all. The holder seals the slot when each item that has come is what its checksum says, and each
one that has not lies there already, under the same layout and with the same checksum.
"""

import dataclasses
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from deadpool.host.errors import ProtocolError
from deadpool.proto.frames import LENGTH_BYTES, receive_exactly, receive_rest, to_frame
from deadpool.proto.messages import SlotKind
from deadpool.proto.step import NO_STEP

MAX_FRAME_BYTES = 1 << 20
RUNS_MAX = 512  # of a replica's data that are sent by one call: the kernel takes twice as many
_PIECE = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSlots:
    rank: int
    slot_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """`keep_step`: the newest committed step: its slot stays, the other one is written (slots.slot_to_write).

    `sender_generation`: the one in which the sender runs (`generation` names the state). A holder whose agent has obeyed a newer
    one refuses it and ends what it has begun to write, before it sends its VaultReport: the sender may be on a node that was cut
    off and does not know yet that it is replaced, and what a report says must still be there when the plan comes.
    The data lie at `data_offset`, `data_bytes` in all; of the `tables_bytes` of tables the first `layout_bytes` are the layout,
    which has this `layout_checksum` (0: it comes, whatever the holder has).
    `group`: of the further connections, where the data come over more than one.
    `whole`: 1: all of the replica follows immediately; its layout only with `with_layout` 1, else the holder knows it.
    """

    rank: int
    generation: int
    step: int
    keep_step: int
    data_offset: int
    data_bytes: int
    layout_bytes: int
    tables_bytes: int
    layout_checksum: int = 0
    sender_generation: int = 0
    group: str = ""
    connections: int = 1
    stripe_bytes: int = 0
    whole: int = 0
    with_layout: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinData:
    """This connection is the number `index`, from 1 on, of those that carry the data of `group`, and is asked nothing else."""

    group: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHead:
    """`step` NO_STEP: of any state of that rank."""

    kind: SlotKind
    rank: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetData:
    """`ranges`: (offset in the slot's data, bytes)."""

    kind: SlotKind
    rank: int
    generation: int
    step: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """A reader has got other bytes than the slot's checksums say: the vault checks it, and unseals it if it is so."""

    kind: SlotKind
    rank: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHoldings:
    """For people who ask what is replicated where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`raw_bytes`: how many raw bytes follow. `error`: "" or why not. `held_generation`, `held_step`: the state in the slot that
    is to be written, NO_STEP: none. `layout_held`: 1: the holder knows a layout with the Put's checksum, which does not come.
    """

    raw_bytes: int = 0
    error: str = ""
    held_generation: int = 0
    held_step: int = NO_STEP
    layout_held: int = 0


Request = ReserveSlots | Put | GetHead | GetData | Discard | GetHoldings | JoinData
_REQUESTS: dict[str, type[Request]] = {kind.__name__: kind for kind in get_args(Request)}


def send_request(connection: socket.socket, request: Request) -> None:
    connection.sendall(_request_frame(request))


def send_whole(connection: socket.socket, put: Put, layout: bytes, data: Sequence[memoryview], tail: tuple[bytes, bytes]) -> None:
    """Sends a Put and all that follows it. `layout`: b"" where the holder knows it; `data`: the replica's, RUNS_MAX at most."""
    end = piece_head(0, 0)  # a piece of no bytes is the end: where there is nothing unique it comes alone
    begin = piece_head(0, put.data_bytes) if put.data_bytes else b""
    send_together(connection, _request_frame(put), layout, begin, *data, end, *tail)


def _request_frame(request: Request) -> bytes:
    return to_frame({"request": type(request).__name__, **_fields_of(request)})


def receive_request(connection: socket.socket) -> Request | None:
    """Returns the next request, None when the peer has closed; ProtocolError on anything that is none."""
    frame = _receive(connection)
    if frame is None:
        return None
    kind = _REQUESTS.get(str(frame.pop("request", "")))
    if kind is None:
        raise ProtocolError("not a request")
    try:
        return kind(**{name: _VALUES.get(name, _integer)(value) for name, value in frame.items()})
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"not a {kind.__name__}: {error}") from error


def send_reply(connection: socket.socket, reply: Reply) -> None:
    _send(connection, _fields_of(reply))


def receive_reply(connection: socket.socket) -> Reply:
    frame = _receive(connection)
    if frame is None:
        raise ProtocolError("connection closed before the reply")
    try:
        numbers = {name: _integer(frame[name]) for name in ("raw_bytes", "held_generation", "held_step", "layout_held")}
        return Reply(error=str(frame["error"]), **numbers)
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"not a reply: {error}") from error


def send_together(connection: socket.socket, *parts: bytes | memoryview) -> None:
    """Sends these parts, one after the other: by one call of the kernel where it takes them all."""
    sent = connection.sendmsg(parts)
    for part in parts:
        if sent < len(part):
            connection.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))


def send_piece(connection: socket.socket, offset: int, data: memoryview, *, behind: bytes = b"") -> None:
    """Sends a piece, after what comes before it."""
    send_together(connection, behind, _PIECE.pack(offset, len(data)), data)


def send_piece_header(connection: socket.socket, offset: int, size_bytes: int) -> None:
    """The piece's bytes come next, or in another way (transport.py)."""
    connection.sendall(piece_head(offset, size_bytes))


def piece_head(offset: int, size_bytes: int) -> bytes:
    return _PIECE.pack(offset, size_bytes)


def send_end_of_pieces(connection: socket.socket, *following: bytes) -> None:
    send_together(connection, _PIECE.pack(0, 0), *following)


def receive_piece(connection: socket.socket) -> tuple[int, int]:
    """Returns (offset, size) of the piece whose bytes come next; size 0: that was all."""
    offset, size = _PIECE.unpack(receive_exactly(connection, _PIECE.size))
    return offset, size


def stripes(view: memoryview, position: int, put: Put) -> Iterator[tuple[int, memoryview]]:
    """Yields (connection, its bytes) of bytes that begin at that position among all of the Put's."""
    if put.connections <= 1 or put.stripe_bytes <= 0:
        yield 0, view
        return
    at = 0
    while at < len(view):
        stripe, inside = divmod(position + at, put.stripe_bytes)
        end = min(len(view), at + put.stripe_bytes - inside)
        yield stripe % put.connections, view[at:end]
        at = end


def receive_into(connection: socket.socket, target: memoryview) -> None:
    """Fills `target` from the connection; ProtocolError when the peer closes before."""
    received = 0
    while received < len(target):
        count = connection.recv_into(target[received:], 0, socket.MSG_WAITALL)
        if count == 0:
            raise ProtocolError(f"connection closed after {received} of {len(target)} bytes")
        received += count


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _ranges(value: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of ranges")
    return tuple((_integer(offset), _integer(size)) for offset, size in value)


_VALUES: dict[str, Callable[[object], Any]] = {"kind": lambda value: SlotKind(str(value)), "ranges": _ranges, "group": str}


def _fields_of(message: Request | Reply) -> dict[str, object]:
    return {name: getattr(message, name) for name in _NAMES[type(message)]}


_NAMES = {kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in (*_REQUESTS.values(), Reply)}


def _send(connection: socket.socket, frame: dict[str, object]) -> None:
    connection.sendall(to_frame(frame))


def _receive(connection: socket.socket) -> dict[str, object] | None:
    first = connection.recv(LENGTH_BYTES)
    return receive_rest(connection, first, MAX_FRAME_BYTES) if first else None
