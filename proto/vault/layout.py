"""The vault's format: what a slot file holds, how it is sealed, and how a torn one is told from a good one.

A slot is one raw file in the vault's folder, `snapshot-<rank>-<a|b>` or `replica-<rank>-<a|b>`:

    0            header page (HEADER_BYTES): sizes, generation, step, checksums; `sealed` is written last
    4096         tables: layout (JSON) | the rest: metadata (opaque) | one xxh3-64 for each item (uint64, little endian)
    data_offset  data: a snapshot holds all items, a replica the unique ones only, one after the other from 0 on

Writing: unseal, write data, tables, then the header whose checksum covers `sealed = 1`. Whoever reads trusts nothing before
the header's checksum, those of the layout and of the rest of the tables, and that of each item that it uses. A layout that lies
there already is left: it is the same from state to state, and may be ten times the size of the rest.
"""

import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import xxhash

from deadpool.host.disk import free_bytes
from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.proto.messages import SlotKind

HEADER_BYTES = 4096
ALIGN_BYTES = 64
SLOT_NAMES = ("a", "b")
SNAPSHOT_NAMES = (*SLOT_NAMES, "c", "d")  # a rank's own: as many as snapshot_slots says
PIN = "checkpoint"  # checkpoint-<rank>-<generation>-<step>: a link to a sealed slot, which must not be overwritten meanwhile
TURNS = 16  # an item that is left as it lies, state after state, is read again in every 16th: memory may go bad meanwhile
SUM_BYTES = 8  # of an item's checksum in the tables
UNIQUE = -1  # Item.peers of an item that travels with the replica

_MAGIC = b"DPSLOT02"
_FIELDS = struct.Struct(
    "<8sIiqqQQQQQQQQQ"
)  # magic sealed rank generation step layout meta items data_offset data unique layout_sum tables_sum header_sum
_SEALED_OFFSET = 8


def slot_path(vault_dir: Path, kind: SlotKind, rank: int, name: str) -> Path:
    return vault_dir / f"{kind}-{rank}-{name}"


def snapshot_slots(*, checkpoints: bool, going_back: bool) -> int:
    """Returns how many slots a rank's snapshots need: the newest commit, the one being written; with persistent checkpoints one
    that is pinned meanwhile; and the last verified state, when the job may have to go back to it.
    """
    return len(SLOT_NAMES) + checkpoints + going_back


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


def checksum(data: bytes | bytearray | memoryview | mmap.mmap) -> int:
    """Returns the xxh3-64 of the bytes."""
    return xxhash.xxh3_64_intdigest(data)


def checksums(data: memoryview, parts: Iterable[slice]) -> list[int]:
    """Returns the xxh3-64 of each of these parts of the data."""
    return list(map(xxhash.xxh3_64_intdigest, map(data.__getitem__, parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One tensor of the state. `offset`: within the data. `peers`: index into Layout.peer_sets, or UNIQUE."""

    key: str
    offset: int
    nbytes: int
    dtype: str  # torch's name without "torch.", as "float32"
    shape: tuple[int, ...]
    peers: int = UNIQUE


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where each item lies in a slot's data. `peer_sets[i]`: the other ranks that hold the same bytes, sorted.

    `unique_bytes`: of a replica's data.
    """

    items: tuple[Item, ...]
    peer_sets: tuple[tuple[int, ...], ...]
    unique_bytes: int
    data_bytes: int

    @classmethod
    def place(cls, items: Iterable[Item], peer_sets: Sequence[tuple[int, ...]] = ()) -> Self:
        """Returns the layout with aligned offsets given to the items, unique ones first (their order is otherwise kept)."""
        placed: list[Item] = []
        offset = unique_bytes = 0
        for item in sorted(items, key=lambda item: item.peers != UNIQUE):
            placed.append(replace(item, offset=offset))
            offset = aligned(offset + item.nbytes)
            if item.peers == UNIQUE:
                unique_bytes = offset
        return cls(items=tuple(placed), peer_sets=tuple(peer_sets), unique_bytes=unique_bytes, data_bytes=offset)

    def with_peers(self, peers: Mapping[str, tuple[int, ...]]) -> Self:
        """Returns the layout of the same data in the same places, of which other ranks hold these items as well."""
        sets = sorted({peers.get(item.key, ()) for item in self.items} - {()})
        index = {peer_set: i for i, peer_set in enumerate(sets)}
        items = tuple(replace(item, peers=index.get(peers.get(item.key, ()), UNIQUE)) for item in self.items)
        unique_bytes = sum(aligned(item.nbytes) for item in items if item.peers == UNIQUE)
        return replace(self, items=items, peer_sets=tuple(sets), unique_bytes=unique_bytes)

    def of_replica(self) -> Self:
        """Returns the same items, in the same order, with the places that the unique ones have in a replica; this very object
        when they lie so here. Kept for the layout asked last.
        """
        if not (_last_replica and _last_replica[0][0] is self):
            _last_replica[:] = [(self, self._of_replica())]
        replica: Self = _last_replica[0][1]
        return replica

    def _of_replica(self) -> Self:
        if self.unique_runs() in ([], [(0, self.unique_bytes)]):
            return self
        placed: dict[int, Item] = {}
        offset = 0
        for index, item in sorted(enumerate(self.items), key=lambda each: each[1].peers != UNIQUE):
            placed[index] = replace(item, offset=offset)
            offset = aligned(offset + item.nbytes)
        items = tuple(placed[index] for index in range(len(self.items)))
        return replace(self, items=items, data_bytes=offset)

    def unique_runs(self) -> list[tuple[int, int]]:
        """Returns the ranges [begin, end) of this data that, one after the other, are the replica's."""
        return self._unique_runs

    @cached_property
    def _unique_runs(self) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        for item in self.items:
            begin, end = item.offset, item.offset + aligned(item.nbytes)
            if item.peers != UNIQUE or begin == end:
                continue
            if runs and runs[-1][1] == begin:
                runs[-1] = runs[-1][0], end
            else:
                runs.append((begin, end))
        return runs

    def to_bytes(self) -> bytes:
        """Returns the layout as it lies in the tables."""
        return self._bytes

    @cached_property
    def digest(self) -> int:
        """Returns the checksum by which this layout is known."""
        return checksum(self._bytes)

    @cached_property
    def _bytes(self) -> bytes:
        rows = [[i.key, i.offset, i.nbytes, i.dtype, list(i.shape), i.peers] for i in self.items]
        return json.dumps([rows, self.peer_sets, self.unique_bytes, self.data_bytes], separators=(",", ":")).encode()

    @cached_property
    def unique_items(self) -> "UniqueItems":
        """Returns what travels with a replica."""
        return UniqueItems([index for index, item in enumerate(self.items) if item.peers == UNIQUE and item.nbytes], self.items)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """Returns the layout that to_bytes gave; the same object for the same bytes."""
        return cls._parsed(_LayoutBytes(data))

    @classmethod
    @lru_cache(maxsize=64)
    def _parsed(cls, data: "_LayoutBytes") -> Self:
        rows, peer_sets, unique_bytes, data_bytes = json.loads(data)
        items = tuple(
            Item(key=key, offset=offset, nbytes=nbytes, dtype=dtype, shape=tuple(shape), peers=peers)
            for key, offset, nbytes, dtype, shape, peers in rows
        )
        return cls(items=items, peer_sets=tuple(map(tuple, peer_sets)), unique_bytes=unique_bytes, data_bytes=data_bytes)


class _LayoutBytes(bytes):
    """A layout of thousands of items is a megabyte: Python's own hash of it would take a millisecond."""

    def __hash__(self) -> int:
        return checksum(self)


class UniqueItems:
    """The unique items of a layout that have bytes, in order: their indices among all items, and where they lie in the data."""

    def __init__(self, indices: list[int], items: Sequence[Item]) -> None:
        self.indices = indices
        self.items = [items[index] for index in indices]
        self.begins = [item.offset for item in self.items]
        self.ends = [item.offset + item.nbytes for item in self.items]
        self.slices = list(map(slice, self.begins, self.ends))


_last_replica: list[tuple[Any, Any]] = []  # a layout, and what it is as a replica's


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A slot's header page. `data_bytes`: of data in this file (a replica: the unique part). `tables_checksum`: of the tables
    behind the layout.
    """

    rank: int
    generation: int
    step: int
    layout_bytes: int
    meta_bytes: int
    items: int
    data_offset: int
    data_bytes: int
    unique_bytes: int
    layout_checksum: int
    tables_checksum: int

    @property
    def tables_bytes(self) -> int:
        return self.layout_bytes + self.meta_bytes + SUM_BYTES * self.items

    def has_layout_of(self, other: "Header | None") -> bool:
        """Returns whether the layout that lies in a slot with the other header is this one's."""
        return other is not None and (other.layout_checksum, other.layout_bytes) == (self.layout_checksum, self.layout_bytes)

    @property
    def slot_bytes(self) -> int:
        return self.data_offset + self.data_bytes

    def to_page(self) -> bytes:
        """Returns the sealed header page."""
        return self.to_fields().ljust(HEADER_BYTES, b"\0")

    def to_fields(self) -> bytes:
        """Returns what the sealed header page begins with; the rest of it is empty."""
        body = _FIELDS.pack(
            _MAGIC, 1, self.rank, self.generation, self.step, self.layout_bytes, self.meta_bytes, self.items,
            self.data_offset, self.data_bytes, self.unique_bytes, self.layout_checksum, self.tables_checksum, 0,
        )  # fmt: skip
        return body[:-SUM_BYTES] + checksum(body).to_bytes(SUM_BYTES, "little")

    @classmethod
    def from_page(cls, page: bytes | memoryview) -> Self | None:
        """Returns the header, or None when the slot is empty, torn or not a slot."""
        if len(page) < _FIELDS.size:
            return None
        fields = bytes(page[: _FIELDS.size])
        magic, sealed, rank, generation, step, *sizes, header_checksum = _FIELDS.unpack(fields)
        if magic != _MAGIC or sealed != 1 or checksum(fields[:-SUM_BYTES] + bytes(SUM_BYTES)) != header_checksum:
            return None
        names = ("layout_bytes", "meta_bytes", "items", "data_offset", "data_bytes", "unique_bytes")
        numbers = dict(zip((*names, "layout_checksum", "tables_checksum"), sizes, strict=True))
        return cls(rank=rank, generation=generation, step=step, **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    layout: Layout
    meta: bytes
    checksums: Sequence[int]  # one for each item, in layout order

    def rest(self) -> bytes:
        """Returns the tables as they lie in a slot behind the layout."""
        return self.meta + struct.pack(f"<{len(self.checksums)}Q", *self.checksums)

    def header(self, rest: bytes, *, rank: int, generation: int, step: int, data_offset: int) -> Header:
        """Returns the header of a snapshot with these tables, of which this is the `rest`."""
        return Header(
            rank=rank,
            generation=generation,
            step=step,
            layout_bytes=len(self.layout.to_bytes()),
            meta_bytes=len(self.meta),
            items=len(self.layout.items),
            data_offset=data_offset,
            data_bytes=self.layout.data_bytes,
            unique_bytes=self.layout.unique_bytes,
            layout_checksum=self.layout.digest,
            tables_checksum=checksum(rest),
        )

    @classmethod
    def from_bytes(cls, header: Header, data: bytes | bytearray | memoryview) -> Self:
        """Returns the tables; SnapshotError when their checksums are not the header's."""
        view = memoryview(data)
        layout, rest = view[: header.layout_bytes], view[header.layout_bytes :]
        if checksum(layout) != header.layout_checksum:
            raise SnapshotError(f"tables of rank {header.rank} step {header.step}: checksum of the layout differs")
        return cls.of_layout(Layout.from_bytes(layout), header, rest)

    @classmethod
    def of_layout(cls, layout: Layout, header: Header, rest: bytes | bytearray | memoryview) -> Self:
        """Returns the tables with this layout, which is known to be the header's; SnapshotError as `from_bytes`."""
        if header.layout_bytes + len(rest) != header.tables_bytes or checksum(rest) != header.tables_checksum:
            raise SnapshotError(f"tables of rank {header.rank} step {header.step}: checksum differs")
        meta, sums = rest[: header.meta_bytes], rest[header.meta_bytes :]
        return cls(layout=layout, meta=bytes(meta), checksums=struct.unpack(f"<{header.items}Q", sums))


def replica_of(header: Header, layout: Layout) -> Header:
    """Returns the header of this snapshot's replica: the same state, the unique items only. `layout`: the snapshot's.

    The replica's tables are the layout `of_replica`, and the same rest.
    """
    replica = layout.of_replica()
    return replace(header, layout_bytes=len(replica.to_bytes()), layout_checksum=replica.digest, data_bytes=layout.unique_bytes)


def slot_capacity(data_bytes: int, items: int, meta_bytes: int) -> tuple[int, int]:
    """Returns (slot file size, data offset) with room for metadata and layout to grow a few times."""
    tables = items * 256 + 4 * meta_bytes + (64 << 10)
    data_offset = -(-(HEADER_BYTES + tables) // 4096) * 4096
    return data_offset + -(-data_bytes // 4096) * 4096, data_offset


def stays(path: Path, size_bytes: int) -> bool:
    """Returns whether `reserve` leaves the file as it is: one of that size or more, and a smaller one that holds a sealed state.

    That may still be needed; whoever overwrites it makes it larger then.
    """
    if not path.exists():
        return False
    with path.open("rb") as file:
        return path.stat().st_size >= size_bytes or Header.from_page(file.read(HEADER_BYTES)) is not None


def reserve(path: Path, size_bytes: int) -> None:
    """Makes the slot file, unless it `stays`, with all its memory taken now: no later write can meet a full /dev/shm (SIGBUS).

    Raises ConfigError with the sum needed and what is free.
    """
    if stays(path, size_bytes):
        return
    path.unlink(missing_ok=True)
    free = free_bytes(path.parent)
    if size_bytes > free:  # asked for all the same, the memory would be taken bit by bit until others miss it
        raise ConfigError(f"vault {path.parent}: {path.name} needs {size_bytes} bytes, {free} are free")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        path.unlink()
        raise ConfigError(f"vault {path.parent}: {path.name} needs {size_bytes} bytes, {free} are free ({error})") from error
    finally:
        os.close(fd)


def grow(path: Path, size_bytes: int) -> None:
    """Makes the slot file larger where it lies; its content stays. ConfigError with the sum needed, the file being as before."""
    more_bytes = size_bytes - path.stat().st_size
    free = free_bytes(path.parent)
    reason = ""
    if more_bytes <= free:
        fd = os.open(path, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return
        except OSError as error:
            reason = f" ({error})"
        finally:
            os.close(fd)
    raise ConfigError(f"vault {path.parent}: {path.name} needs {more_bytes} bytes more, {free} are free{reason}")


class SlotFile:
    """One mapped slot file. The writer is a rank (snapshot) or an agent's receiver (replica); anyone of the node may read."""

    def __init__(self, path: Path) -> None:
        self.path, self._name = path, str(path)
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
            self._inode = os.fstat(file.fileno()).st_ino
        self.view = memoryview(self.map)
        self._read: tuple[bytes, Header | None] = (b"", None)  # what the header page said last

    def is_current(self) -> bool:
        """Returns whether its path still names this file, in this size. OSError: it names none."""
        status = os.stat(self._name)
        return (status.st_ino, status.st_size) == (self._inode, len(self.view))

    def pinned(self) -> bool:
        """Returns whether a link to the file is there: what lies in it is being written to a checkpoint."""
        return os.stat(self._name).st_nlink > 1

    @property
    def capacity_bytes(self) -> int:
        return len(self.view)

    def header(self) -> Header | None:
        """Returns the header of a sealed slot, None when it is empty or torn."""
        fields = bytes(self.view[: _FIELDS.size])
        read = self._read  # another thread may read another page meanwhile
        if fields != read[0]:
            read = self._read = fields, Header.from_page(fields)
        return read[1]

    def tables(self, header: Header) -> Tables:
        return Tables.from_bytes(header, self.view[HEADER_BYTES : HEADER_BYTES + header.tables_bytes])

    def data(self, header: Header) -> memoryview:
        return self.view[header.data_offset : header.data_offset + header.data_bytes]

    def unseal(self) -> None:
        """First act of every write: from here to seal() the slot is torn."""
        self.view[_SEALED_OFFSET : _SEALED_OFFSET + 4] = b"\0\0\0\0"

    def seal(self, header: Header, layout: bytes | None, rest: bytes | bytearray | memoryview) -> None:
        """Writes the tables and, last, the header. The data must lie at header.data_offset already, and so must the layout where
        none is given.
        """
        begin, end = HEADER_BYTES + header.layout_bytes, HEADER_BYTES + header.tables_bytes
        if end > header.data_offset or header.slot_bytes > self.capacity_bytes:
            raise SnapshotError(f"{self.path.name}: {end} bytes of tables and {header.data_bytes} of data do not fit")
        if layout is not None:
            self.view[HEADER_BYTES:begin] = layout
        self.view[begin:end] = rest
        fields, sealed_end = header.to_fields(), _SEALED_OFFSET + 4
        self.view[: _FIELDS.size] = fields[:_SEALED_OFFSET] + b"\0\0\0\0" + fields[sealed_end:]
        self.view[_SEALED_OFFSET:sealed_end] = fields[_SEALED_OFFSET:sealed_end]
        self._read = fields, header

    def close(self) -> None:
        self.view.release()
        self.map.close()
