"""Receives replicas into this node's vault and serves its slots, over authenticated TCP (proto/vault/wire.py).

The receivers of MPI pairs come over a socket in the vault's folder, which shows that they are of this user and this job.

A thread per connection. Data goes from the socket straight into the slot, which stays mapped; a replica is sealed only after its
tables and each of its items have been found whole (arrivals.py). Whoever reads a slot here checks the items it uses against the
slot's checksums: data that a writer overwrites while it is being sent cannot pass.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deadpool.agent.vault.arrivals import KnownLayouts, TcpArrival, arrived, tables_in_place
from deadpool.agent.vault.departures import send_ranges
from deadpool.agent.vault.joined import JoinedConnections
from deadpool.agent.vault.landing import LandingArrival
from deadpool.agent.vault.written_slots import WrittenSlots
from deadpool.host.errors import ConfigError, ProtocolError, SnapshotError
from deadpool.host.ports import listen_at
from deadpool.proto.messages import SlotKind
from deadpool.proto.secret import AUTH_TIMEOUT_S, check_as_server
from deadpool.proto.step import NO_STEP
from deadpool.proto.vault.edge import VAULT_SOCKET, listen_in
from deadpool.proto.vault.holdings import SlotHoldings, to_json
from deadpool.proto.vault.layout import (
    HEADER_BYTES,
    SLOT_NAMES,
    SNAPSHOT_NAMES,
    TURNS,
    Header,
    SlotFile,
    Tables,
    checksum,
    grow,
    reserve,
    slot_path,
    stays,
)
from deadpool.proto.vault.slots import StateId, slot_to_write
from deadpool.proto.vault.transport import Arrival
from deadpool.proto.vault.wire import (
    Discard,
    GetData,
    GetHead,
    GetHoldings,
    JoinData,
    Put,
    Reply,
    Request,
    ReserveSlots,
    receive_request,
    send_reply,
)

_log = logging.getLogger(__name__)
_BACKLOG = 128
_STRANGERS_MAX = 16  # connections that have not shown the token yet
_ACCEPT_POLL_S = 1.0
_LAST_WORDS_S = 5.0
_READ_BYTES = 1 << 20
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class ReplicaServer:
    """Listens from the start (`port` goes into Hello); serves once `start` names the vault's folder."""

    def __init__(self, host: str, token: str) -> None:
        self._listener = listen_at(host, backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._token = token
        self._folder = Path()
        self._known_paths: dict[tuple[SlotKind, int], list[Path]] = {}
        self.replicas_received = self.replica_bytes_received = 0  # whole ones
        self._pairs: socket.socket | None = None
        self._lock = threading.Lock()  # guards all that follows
        self._strangers: dict[socket.socket, float] = {}  # -> when its time is over
        self._members: set[socket.socket] = set()
        self._refused: set[str] = set()
        self._generation = 0  # the newest that the agent has obeyed: senders of older ones are refused
        self._senders: dict[int, int] = {}  # rank -> the newest generation in which it has sent
        self._writing: dict[int, tuple[int, Arrival]] = {}  # rank -> generation and data of the write under way
        self._written = WrittenSlots()
        self._layouts = KnownLayouts()
        self._joined = JoinedConnections()
        self._slot_locks: dict[int, threading.Lock] = {}
        self._closed = False

    def start(self, folder: Path) -> None:
        self._folder = folder
        self._pairs = listen_in(folder, VAULT_SOCKET)
        threading.Thread(target=self._accept, name="replica-accept", daemon=True).start()
        threading.Thread(target=self._accept_pairs, name="replica-accept-pairs", daemon=True).start()

    def fence(self, generation: int) -> None:
        """From here on, nothing of an older generation begins to write a slot: what a VaultReport names stays as it is."""
        with self._lock:
            self._generation = max(self._generation, generation)
            for sender_generation, arrival in self._writing.values():
                if sender_generation < self._generation:
                    arrival.interrupt()

    def close(self) -> None:
        """Ends all connections. Their threads notice and end."""
        self._closed = True
        with self._lock:
            for connection in [*self._strangers, *self._members]:
                _shut(connection)
        for listener in (self._listener, self._pairs):
            if listener is not None:
                _shut(listener)
                listener.close()
        self._joined.close()
        self._written.clear()

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        self._listener.settimeout(_ACCEPT_POLL_S)
        said = ""
        while not self._closed:
            try:
                connection, address = self._listener.accept()
            except TimeoutError:
                self._drop_slow_strangers()
                continue
            except OSError as error:
                if self._closed:
                    return
                if str(error) != said:
                    said = str(error)
                    _log.warning("accept: %s (said once)", error)  # out of descriptors, or the peer is gone already
                time.sleep(_ACCEPT_POLL_S)
                continue
            self._drop_slow_strangers()
            with self._lock:
                if len(self._strangers) >= _STRANGERS_MAX:  # the one that has had most time goes
                    _shut(min(self._strangers, key=self._strangers.__getitem__))
                self._strangers[connection] = time.monotonic() + AUTH_TIMEOUT_S
            name = f"replica-{address[0]}:{address[1]}"
            threading.Thread(target=self._attend, args=(connection, address[0]), name=name, daemon=True).start()

    def _drop_slow_strangers(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            for connection, until_s in self._strangers.items():
                if now_s > until_s:
                    _shut(connection)

    def _accept_pairs(self) -> None:
        assert self._pairs is not None
        while not self._closed:
            try:
                connection, _ = self._pairs.accept()
            except OSError as error:
                if not self._closed:
                    _log.warning("accept: %s", error)
                    time.sleep(_ACCEPT_POLL_S)
                continue
            with self._lock:
                self._members.add(connection)
            threading.Thread(target=self._attend_pair, args=(connection,), name="replica-pair", daemon=True).start()

    def _attend_pair(self, connection: socket.socket) -> None:
        arrival = LandingArrival(connection)
        try:
            with connection:
                self._answer_all(connection, arrival)
        except (ProtocolError, OSError) as error:
            _log.debug("an MPI pair: %s", error)
        finally:
            arrival.close()
            with self._lock:
                self._members.discard(connection)

    def _attend(self, connection: socket.socket, peer: str) -> None:
        try:
            with connection:
                for option, value in _KEEPALIVE:
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                check_as_server(connection, self._token)
                with self._lock:
                    self._members.add(connection)
                    self._strangers.pop(connection, None)
                arrival = TcpArrival(connection, self._joined)
                try:
                    self._answer_all(connection, arrival)
                finally:
                    arrival.close()
        except ProtocolError as error:
            self._refuse(peer, str(error))
        except OSError as error:
            _log.debug("connection of %s: %s", peer, error)  # closed by the peer, or by us for a newer one
        finally:
            with self._lock:
                self._strangers.pop(connection, None)
                self._members.discard(connection)

    def _refuse(self, peer: str, reason: str) -> None:
        with self._lock:
            known = peer in self._refused
            self._refused.add(peer)
        if not known and not self._closed:
            _log.warning("connection of %s refused: %s (said once for each peer)", peer, reason)

    # ------------------------------------------------------------ requests

    def _answer_all(self, connection: socket.socket, arrival: Arrival) -> None:
        while not self._closed and (request := receive_request(connection)) is not None:
            if not self._answer(connection, arrival, request):
                return

    def _answer(self, connection: socket.socket, arrival: Arrival, request: Request) -> bool:
        """Carries the request out and returns whether the connection stays open."""
        try:
            match request:
                case ReserveSlots():
                    self._reserve(request)
                    send_reply(connection, Reply())
                case Put():
                    self._receive(connection, arrival, request)
                    send_reply(connection, Reply())
                case Discard():
                    self._discard(request)
                    send_reply(connection, Reply())
                case GetHead() | GetData():
                    self._send_slot(connection, request)
                case GetHoldings():
                    held = to_json(list(self._holdings()))
                    send_reply(connection, Reply(raw_bytes=len(held)))
                    connection.sendall(held)
                case JoinData():
                    self._joined.join(request.group, request.index, connection)
                    send_reply(connection, Reply())
                    self._joined.stay(request.group, request.index)
                    return False
        except (ConfigError, SnapshotError) as error:
            send_reply(connection, Reply(error=str(error)))
            if isinstance(request, Put) and request.whole:
                _read_to_the_end(connection)
            return not isinstance(request, Put)
        return True

    def _reserve(self, request: ReserveSlots) -> None:
        with self._rank_lock(request.rank):
            for path in self._paths(SlotKind.REPLICA, request.rank):
                if not stays(path, request.slot_bytes):
                    self._written.forget(path)
                    reserve(path, request.slot_bytes)

    def _receive(self, connection: socket.socket, arrival: Arrival, put: Put) -> None:
        """Has the replica come to the slot that may be written, and seals it once it is found whole."""
        with self._only_writer(arrival, put):
            slots = [self._written.of(path) for path in self._paths(SlotKind.REPLICA, put.rank) if path.exists()]
            if len(slots) != len(SLOT_NAMES):
                raise SnapshotError(f"no replica slots for rank {put.rank}: ReserveSlots comes first")
            headers = [slot.header() for slot in slots]
            held = [StateId(generation=each.generation, step=each.step) if each is not None else None for each in headers]
            index = slot_to_write(held, put.keep_step)
            slot = slots[index]
            sizes = (put.data_bytes, put.layout_bytes, put.tables_bytes - put.layout_bytes)
            if HEADER_BYTES + put.tables_bytes > put.data_offset or min(sizes) < 0:
                raise SnapshotError(f"replica of rank {put.rank}: {put.tables_bytes} bytes of tables before {put.data_offset}")
            known, before = self._layouts.find(put), None
            if put.whole and not put.with_layout and known is None:
                raise SnapshotError(f"replica of rank {put.rank}: the layout of step {put.step} is not known here")
            if not put.whole:
                before = tables_in_place(slot, headers[index], put, known)
            elif put.with_layout:
                known = None
            with self._lock:  # between the check and the unsealing no fence may fall
                self._check_sender(put)
                slot.unseal()
            if put.data_offset + put.data_bytes > slot.capacity_bytes:  # the state has grown
                grow(slot.path, put.data_offset + put.data_bytes)
                slot = self._written.of(slot.path)
            was, turn = held[index] if before is not None else None, self._written.turn(slot.path)
            if not put.whole:
                begun = Reply() if was is None else Reply(held_generation=was.generation, held_step=was.step)
                send_reply(connection, replace(begun, layout_held=int(known is not None)))
            with slot.view[put.data_offset : put.data_offset + put.data_bytes] as data:
                header, layout, rest, come_bytes = arrived(connection, arrival, put, slot.path, data, known, before, turn)
            in_place = header.has_layout_of(headers[index]) and turn % TURNS != 0
            with self._lock:
                self._check_sender(put)
                slot.seal(header, None if in_place else layout.to_bytes(), rest)
                self._layouts.add(put, layout)
                self.replicas_received += 1
                self.replica_bytes_received += come_bytes
                for other, was in enumerate(held):  # what was said of that state before (ranks have parted) must not be found
                    if other != index and was == StateId(generation=put.generation, step=put.step):
                        slots[other].unseal()

    def _send_slot(self, connection: socket.socket, request: GetHead | GetData) -> None:
        for path in self._paths(request.kind, request.rank):
            if not path.exists():
                continue
            with _opened(path) as slot:
                header = slot.header()
                if header is None:
                    continue
                if request.step != NO_STEP and (header.generation, header.step) != (request.generation, request.step):
                    continue
                if isinstance(request, GetHead):
                    tables = bytes(slot.view[HEADER_BYTES : HEADER_BYTES + header.tables_bytes])
                    Tables.from_bytes(header, tables)
                    send_reply(connection, Reply(raw_bytes=HEADER_BYTES + len(tables)))
                    connection.sendall(header.to_page())
                    connection.sendall(tables)
                    return
                if any(offset < 0 or size < 0 or offset + size > header.data_bytes for offset, size in request.ranges):
                    raise SnapshotError(f"{path.name}: a range lies outside its {header.data_bytes} bytes of data")
                send_reply(connection, Reply(raw_bytes=sum(size for _, size in request.ranges)))
                with path.open("rb") as file:
                    ranges = [(header.data_offset + offset, size) for offset, size in request.ranges]
                    send_ranges(connection, file.fileno(), ranges)
                return
        raise SnapshotError(
            f"no {request.kind} of rank {request.rank}, generation {request.generation}, step {request.step} here"
        )

    def _discard(self, request: Discard) -> None:
        """Unseals the slot if its items are not what their checksums say."""
        with self._rank_lock(request.rank):
            for path in self._paths(request.kind, request.rank):
                if not path.exists():
                    continue
                with _opened(path) as slot:
                    header = slot.header()
                    named = header is not None and (header.generation, header.step) == (request.generation, request.step)
                    if header is not None and named and not _is_whole(slot, header) and slot.header() == header:
                        slot.unseal()
                        _log.warning("%s of step %d fails its checksums: it is not used", path.name, header.step)

    def _holdings(self) -> Iterator[SlotHoldings]:
        """Yields what each sealed slot holds; one that is written meanwhile is left out."""
        for path in sorted(path for kind in SlotKind for path in self._folder.glob(f"{kind}-*")):
            with contextlib.suppress(SnapshotError), _opened(path) as slot:
                header = slot.header()
                if header is not None:
                    kind = SlotKind(path.name.partition("-")[0])
                    yield SlotHoldings.of(kind, header, slot.tables(header).layout)

    # ------------------------------------------------------------ slots

    def _paths(self, kind: SlotKind, rank: int) -> list[Path]:
        found = self._known_paths.get((kind, rank))
        if found is None:
            names = SNAPSHOT_NAMES if kind is SlotKind.SNAPSHOT else SLOT_NAMES
            found = self._known_paths[kind, rank] = [slot_path(self._folder, kind, rank, name) for name in names]
        return found

    def _rank_lock(self, rank: int) -> threading.Lock:
        with self._lock:
            return self._slot_locks.setdefault(rank, threading.Lock())

    @contextlib.contextmanager
    def _only_writer(self, arrival: Arrival, put: Put) -> Iterator[None]:
        """Inside, nobody else writes this rank's replica: who has begun to is interrupted (a frozen node would never end)."""
        with self._lock:
            self._check_sender(put)
            self._senders[put.rank] = put.sender_generation
            if put.rank in self._writing:
                self._writing[put.rank][1].interrupt()
        with self._rank_lock(put.rank):
            with self._lock:
                self._writing[put.rank] = (put.sender_generation, arrival)
            try:
                yield
            finally:
                with self._lock:
                    del self._writing[put.rank]

    def _check_sender(self, put: Put) -> None:
        newest = max(self._generation, self._senders.get(put.rank, 0))
        if put.sender_generation < newest:
            raise SnapshotError(
                f"rank {put.rank} of generation {put.sender_generation} is replaced: generation {newest} has begun"
            )


def _is_whole(slot: SlotFile, header: Header) -> bool:
    """Returns whether every item that the slot holds is what its checksum says."""
    with slot.data(header) as data:
        try:
            tables = slot.tables(header)
        except SnapshotError:
            return False
        return all(
            item.offset + item.nbytes > len(data) or checksum(bytes(data[item.offset : item.offset + item.nbytes])) == expected
            for item, expected in zip(tables.layout.items, tables.checksums, strict=True)
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[SlotFile]:
    try:
        slot = SlotFile(path)
    except OSError as error:
        raise SnapshotError(f"{path.name} cannot be opened: {error.strerror}") from error
    try:
        yield slot
    finally:
        slot.close()


def _read_to_the_end(connection: socket.socket) -> None:
    """Has the peer hear that it is refused, which it does once it has sent all: until it closes, or is silent for too long."""
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(_LAST_WORDS_S)
    while connection.recv(_READ_BYTES):
        pass


def _shut(connection: socket.socket) -> None:
    """Ends a connection that another thread is using; that thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
