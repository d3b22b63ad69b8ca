"""Persistent checkpoints in torch.distributed.checkpoint's own format, written from vault slots and read back by ranks.

Each rank's part is written by its node (`write_part`); whoever finds all parts there completes the checkpoint (`complete`): names
for everybody, the format's `.metadata`, our marker last, then one rename. Nobody waits for anybody.

Names: `<model>.<path>` and `<optimizer>.state.<path>.<entry>`, paths without the wrappers' "module." and "_orig_mod.". Shards are
chunks of one tensor. What ranks hold under one name with different bytes (running means) is rank 0's there, and `rank-<r>.<name>`
for the others. `deadpool.rank-<r>` is what is not a tensor: random generators, param groups, extras.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Size, Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from deadpool.host.errors import SnapshotError
from deadpool.proto.checkpoint import MARKER, PARTIAL, complete_checkpoints, folder_name
from deadpool.proto.vault.layout import UNIQUE, Item, Layout, SlotFile, Tables, checksum
from deadpool.proto.vault.slots import StateId

PIECE_BYTES = 64 << 20
_WRAPPERS = ("module.", "_orig_mod.")

Piece = tuple[int, int, str, int, int]  # first row, rows, file, offset, length


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRun:
    """`name`: of this launch of the job, unlike that of any other. `keep`: how many complete checkpoints stay."""

    folder: Path
    name: str
    job_id: str
    world_size: int
    keep: int

    def partial(self, state: StateId) -> Path:
        return self.folder / f"{PARTIAL}{self.name}-{state.generation}-{state.step}"


def write_part(run: CheckpointRun, slot: SlotFile) -> StateId:
    """Writes what the slot's rank holds, each item checked; items that peers hold too are written by the lowest of them.

    The slot must not change meanwhile. OSError; SnapshotError when the slot is torn or an item fails its checksum.
    """
    header = slot.header()
    if header is None:
        raise SnapshotError(f"{slot.path.name} is torn")
    tables, data, rank = slot.tables(header), slot.data(header), header.rank
    state = StateId(generation=header.generation, step=header.step)
    partial = run.partial(state)
    partial.mkdir(parents=True, exist_ok=True)
    name = f"__{rank}_0.distcp"
    rows: list[list[Any]] = []
    with (partial / name).open("wb") as file:
        for item, total in zip(tables.layout.items, tables.checksums, strict=True):
            held = data[item.offset : item.offset + item.nbytes]
            if checksum(held) != total:
                raise SnapshotError(f"rank {rank} step {state.step}: {item.key} fails its checksum")
            peers = () if item.peers == UNIQUE else tables.layout.peer_sets[item.peers]
            pieces = None if peers and min(peers) < rank else _write_item(file, name, item, held)
            rows.append([item.key, item.dtype, item.shape, item.nbytes, total, pieces])
        meta = (name, file.tell(), file.write(tables.meta), checksum(tables.meta))
        _sync(file)
    with (partial / f"part-{rank}.tmp").open("w") as text:
        json.dump({"items": rows, "meta": meta}, text)
        _sync(text)
    (partial / f"part-{rank}.tmp").rename(partial / f"part-{rank}.json")
    return state


def complete(run: CheckpointRun, state: StateId) -> Path | None:
    """Makes a checkpoint of the parts; returns its folder, or None when parts are missing or it is done by another node."""
    partial = run.partial(state)
    parts = [partial / f"part-{rank}.json" for rank in range(run.world_size)]
    if not all(part.exists() for part in parts):
        return None
    try:
        (partial / "completing").touch(exist_ok=False)
        ranks = [json.loads(part.read_text()) for part in parts]
    except (FileExistsError, FileNotFoundError):
        return None
    if any(one.job_id == run.job_id and one.step > state.step for one in complete_checkpoints(run.folder)[:1]):
        shutil.rmtree(partial, ignore_errors=True)  # a newer one was quicker
        return None
    _share(ranks)
    _write_metadata(partial, ranks)
    marker = {
        "job_id": run.job_id,
        "step": state.step,
        "generation": state.generation,
        "written_ns": time.time_ns(),
        "ranks": ranks,
    }
    for path in (*parts, partial / "completing"):
        path.unlink()
    with (partial / MARKER).open("w") as file:
        json.dump(marker, file)
        _sync(file)
    _sync_folder(partial)
    target = run.folder / folder_name(state.step)
    if target.exists():  # of an earlier life
        target.rename(run.folder / f"{PARTIAL}{run.name}-old-{state.step}")
    partial.rename(target)
    _sync_folder(run.folder)
    _clear(run, state)
    return target


def restore_tables(path: Path, rank: int) -> tuple[Tables, dict[str, bytearray]]:
    """Returns what the rank held, each item checked. SnapshotError when something is missing or fails its checksum."""
    try:
        part = json.loads((path / MARKER).read_text())["ranks"][rank]
        data = {key: _read_item(path, pieces, nbytes) for key, _, _, nbytes, _, pieces in part["items"]}
        *where, total = part["meta"]
        meta = _read(path, *where)
    except (OSError, ValueError, RuntimeError) as error:
        raise SnapshotError(f"checkpoint {path}: {error}") from error
    if checksum(meta) != total:
        raise SnapshotError(f"checkpoint {path}: what is not a tensor of rank {rank} fails its checksum")
    for key, _, _, _, total, _ in part["items"]:
        if checksum(data[key]) != total:
            raise SnapshotError(f"checkpoint {path}: {key} of rank {rank} fails its checksum")
    items = [
        Item(key=key, offset=0, nbytes=nbytes, dtype=dtype, shape=tuple(shape))
        for key, dtype, shape, nbytes, _, _ in part["items"]
    ]
    return Tables(layout=Layout.place(items), meta=meta, checksums=tuple(row[4] for row in part["items"])), data


def public_name(key: str) -> tuple[str, ...]:
    """Returns the path under which an item is found in the checkpoint; joined with dots it is its name."""
    kind, _, rest = key.partition("@")[0].partition("/")
    if kind != "optimizer":
        model, _, path = rest.partition(".")
        return (model, "gradient", _unwrapped(path)) if kind == "gradient" else (model, _unwrapped(path))
    optimizer, parameter, entry = rest.split("/")
    return optimizer.partition(".")[0], "state", _unwrapped(parameter.removeprefix("model.")), entry


def _unwrapped(path: str) -> str:
    for wrapper in _WRAPPERS * 2:
        path = path.removeprefix(wrapper)
    return path


# ---------------------------------------------------------------- data files


def _write_item(file: BinaryIO, name: str, item: Item, data: memoryview) -> list[Piece]:
    """Writes the item as one or more tensors along its first dimension."""
    if not item.nbytes:
        return []
    tensor = torch.frombuffer(data, dtype=getattr(torch, item.dtype)).view(item.shape)
    if not item.shape:
        return [(0, 1, name, *_save(file, tensor))]
    rows = max(1, item.shape[0] * PIECE_BYTES // item.nbytes)
    return [
        (row, min(rows, item.shape[0] - row), name, *_save(file, tensor[row : row + rows]))
        for row in range(0, item.shape[0], rows)
    ]  # fmt: skip


def _save(file: BinaryIO, tensor: Tensor) -> tuple[int, int]:
    begin = file.tell()
    torch.save(tensor.clone(), file)
    return begin, file.tell() - begin


def _read_item(path: Path, pieces: Sequence[Piece], nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    at = 0
    for _, _, name, offset, length in pieces:
        tensor = torch.load(BytesIO(_read(path, name, offset, length)), map_location="cpu", weights_only=True).contiguous()
        size = tensor.numel() * tensor.element_size()
        torch.frombuffer(data, dtype=torch.uint8, count=size, offset=at).copy_(tensor.view(-1).view(torch.uint8))
        at += size
    if at != nbytes:
        raise SnapshotError(f"checkpoint {path}: {at} bytes where {nbytes} should be")
    return data


def _read(path: Path, name: str, offset: int, length: int) -> bytes:
    with (path / name).open("rb") as file:
        file.seek(offset)
        return file.read(length)


# ---------------------------------------------------------------- the whole


def _share(ranks: list[dict[str, Any]]) -> None:
    """Gives items that a lower rank has written to those that hold the same bytes."""
    written = {(row[0], row[4]): row[5] for part in reversed(ranks) for row in part["items"] if row[5] is not None}
    for rank, part in enumerate(ranks):
        for row in part["items"]:
            if row[5] is None:
                row[5] = written.get((row[0], row[4]))
            if row[5] is None:
                raise SnapshotError(f"rank {rank}: {row[0]} should be held by peers, and none has these bytes")


@dataclass(slots=True)
class _Whole:
    """One tensor of the checkpoint. `chunks`: offsets -> (sizes, checksum, pieces)."""

    dtype: torch.dtype
    chunks: dict[tuple[int, ...], tuple[tuple[int, ...], int, list[Piece]]] = field(default_factory=dict)


def _wholes(ranks: list[dict[str, Any]]) -> dict[tuple[str, ...], _Whole]:
    found: dict[tuple[str, ...], _Whole] = {}
    for rank, part in enumerate(ranks):
        for key, dtype, shape, nbytes, total, pieces in part["items"]:
            if not nbytes:
                continue
            shard = key.partition("@")[2].partition("+")[0]
            offsets = tuple(map(int, shard.split(","))) if shard else (0,) * len(shape)
            path = public_name(key)
            whole = found.setdefault(path, _Whole(getattr(torch, dtype)))
            if offsets in whole.chunks and whole.chunks[offsets][1] != total:
                whole = found.setdefault((f"rank-{rank}", *path), _Whole(getattr(torch, dtype)))
            whole.chunks.setdefault(offsets, (tuple(shape), total, pieces))
    return found


def _write_metadata(partial: Path, ranks: list[dict[str, Any]]) -> None:
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    paths: dict[str, tuple[str, ...]] = {}
    results: list[WriteResult] = []

    def stored(index: MetadataIndex, name: str, offset: int, length: int) -> None:
        results.append(WriteResult(index=index, size_in_bytes=length, storage_data=_StorageInfo(name, offset, length)))

    for path, whole in _wholes(ranks).items():
        name, chunks = ".".join(path), []
        for offsets, (sizes, _, pieces) in whole.chunks.items():
            for row, rows, file, begin, length in pieces:
                at, extent = (Size((offsets[0] + row, *offsets[1:])), Size((rows, *sizes[1:]))) if sizes else (Size(()), Size(()))
                chunks.append(ChunkStorageMetadata(offsets=at, sizes=extent))
                stored(MetadataIndex(name, at), file, begin, length)
        ends = [[at + extent for at, extent in zip(chunk.offsets, chunk.sizes, strict=True)] for chunk in chunks]
        size = Size(max(each) for each in zip(*ends, strict=True))
        entries[name] = TensorStorageMetadata(properties=TensorProperties(dtype=whole.dtype), size=size, chunks=chunks)
        paths[name] = path
    for rank, part in enumerate(ranks):
        name = f"deadpool.rank-{rank}"
        entries[name], paths[name] = BytesStorageMetadata(), ("deadpool", f"rank-{rank}")
        stored(MetadataIndex(name), *part["meta"][:3])
    writer = FileSystemWriter(partial)
    writer.finish(Metadata(state_dict_metadata=entries, planner_data=paths), [results])


def clear_partials(run: CheckpointRun) -> None:
    """Removes what earlier runs have left unfinished."""
    for path in run.folder.glob(f"{PARTIAL}*"):
        if not path.name.startswith(f"{PARTIAL}{run.name}-"):
            shutil.rmtree(path, ignore_errors=True)


def _clear(run: CheckpointRun, state: StateId) -> None:
    """Removes the checkpoints that are not to be kept, and what was begun before this one and will not be completed."""
    for one in complete_checkpoints(run.folder)[run.keep :]:
        with contextlib.suppress(OSError):
            (one.path / MARKER).unlink()  # first: half a checkpoint must not look like one
            shutil.rmtree(one.path)
    for path in run.folder.glob(f"{PARTIAL}{run.name}-*"):
        if _step_of(path.name) <= state.step:
            shutil.rmtree(path, ignore_errors=True)


def _step_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
