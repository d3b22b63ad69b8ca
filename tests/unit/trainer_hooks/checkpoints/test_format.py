"""What a persistent checkpoint is made of: parts, names, shards; what torch reads of it, and what a rank gets back."""

import io
import os
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint.state_dict_loader as loader
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.filesystem import FileSystemReader

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.proto.checkpoint import complete_checkpoints, read_marker
from deadpool.proto.config import Keeping
from deadpool.proto.vault.layout import UNIQUE, Item, Layout, SlotFile, Tables, checksum, reserve, slot_capacity
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.checkpoints import format
from deadpool.trainer_hooks.checkpoints.format import CheckpointRun, complete, public_name, restore_tables, write_part
from deadpool.trainer_hooks.checkpoints.resume import agree, candidates

Tensors = dict[str, tuple[torch.Tensor, tuple[int, ...]]]  # key -> value, the peers that hold it too
STATE = StateId(generation=1, step=7)


def slot(folder: Path, rank: int, tensors: Tensors, state: StateId = STATE) -> SlotFile:
    """Returns a sealed slot of that rank, as the protect thread leaves it."""
    sets = sorted({peers for _, peers in tensors.values()} - {()})
    items = [
        Item(
            key=key,
            offset=0,
            nbytes=value.numel() * value.element_size(),
            dtype=str(value.dtype).removeprefix("torch."),
            shape=tuple(value.shape),
            peers=sets.index(peers) if peers else UNIQUE,
        )
        for key, (value, peers) in tensors.items()
    ]
    layout, buffer = Layout.place(items, sets), io.BytesIO()
    torch.save({"rank": rank}, buffer)
    meta = buffer.getvalue()
    size_bytes, data_offset = slot_capacity(layout.data_bytes, len(items), len(meta))
    path = folder / f"snapshot-{rank}-a"
    path.unlink(missing_ok=True)
    reserve(path, size_bytes)
    file, sums = SlotFile(path), []
    for item in layout.items:
        raw = tensors[item.key][0].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        file.view[data_offset + item.offset : data_offset + item.offset + item.nbytes] = raw
        sums.append(checksum(raw))
    tables = Tables(layout=layout, meta=meta, checksums=tuple(sums))
    header = tables.header(tables.rest(), rank=rank, generation=state.generation, step=state.step, data_offset=data_offset)
    file.seal(header, layout.to_bytes(), tables.rest())
    return file


@pytest.fixture
def run(tmp_path: Path) -> CheckpointRun:
    (tmp_path / "checkpoints").mkdir()
    return CheckpointRun(folder=tmp_path / "checkpoints", name="job-1", job_id="job", world_size=2, keep=2)


WEIGHT = torch.arange(12, dtype=torch.float32).view(3, 4)
SHARDED = torch.arange(10, dtype=torch.bfloat16).view(5, 2)


def ranks() -> list[Tensors]:
    """Two ranks: a replicated weight, a sharded one, a running mean of each rank's own, an optimizer's moments."""
    return [
        {
            "model/model.module.weight": (WEIGHT, (1,)),
            "model/model.module.sharded@0,0+3,2": (SHARDED[:3], ()),
            "buffer/model.module.mean": (torch.tensor([1.0]), ()),
            "optimizer/optimizer.optim/model.module.weight/exp_avg": (WEIGHT + 1, ()),
            "optimizer/optimizer/model.module.sharded/step": (torch.tensor(7.0), ()),
        },
        {
            "model/model.module.weight": (WEIGHT, (0,)),
            "model/model.module.sharded@3,0+2,2": (SHARDED[3:], ()),
            "buffer/model.module.mean": (torch.tensor([2.0]), ()),
            "optimizer/optimizer/model.module.sharded/step": (torch.tensor(7.0), ()),
        },
    ]


def written(run: CheckpointRun, folder: Path, held: list[Tensors], state: StateId = STATE) -> Path:
    found = None
    for rank, tensors in enumerate(held):
        assert found is None, "complete before all parts are there"
        assert write_part(run, slot(folder, rank, tensors, state)) == state
        found = complete(run, state)
    assert found is not None
    return found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("piece_bytes", [1 << 20, 8])
def test_torch_reads_it_and_each_rank_gets_its_own_back(run: CheckpointRun, tmp_path: Path, piece_bytes: int) -> None:
    format.PIECE_BYTES, before = piece_bytes, format.PIECE_BYTES
    try:
        path = written(run, tmp_path, ranks())
    finally:
        format.PIECE_BYTES = before
    state: dict[str, Any] = {
        "model": {"weight": torch.zeros(3, 4), "sharded": torch.zeros(5, 2, dtype=torch.bfloat16), "mean": torch.zeros(1)},
        "optimizer": {"state": {"weight": {"exp_avg": torch.zeros(3, 4)}, "sharded": {"step": torch.tensor(0.0)}}},
        "rank-1": {"model": {"mean": torch.zeros(1)}},
        "deadpool": {"rank-0": None, "rank-1": None},
    }
    loader.load(state, storage_reader=FileSystemReader(path), no_dist=True)
    assert torch.equal(state["model"]["weight"], WEIGHT)
    assert torch.equal(state["model"]["sharded"], SHARDED)
    assert (state["model"]["mean"].item(), state["rank-1"]["model"]["mean"].item()) == (1.0, 2.0)
    assert torch.equal(state["optimizer"]["state"]["weight"]["exp_avg"], WEIGHT + 1)
    assert state["deadpool"] == {"rank-0": {"rank": 0}, "rank-1": {"rank": 1}}
    for rank, held in enumerate(ranks()):
        tables, data = restore_tables(path, rank)
        assert {item.key for item in tables.layout.items} == held.keys()
        for key, (value, _) in held.items():
            assert torch.equal(torch.frombuffer(data[key], dtype=value.dtype).view(value.shape), value)


def test_only_the_newest_are_kept_and_nothing_half_done_stays(run: CheckpointRun, tmp_path: Path) -> None:
    write_part(run, slot(tmp_path, 0, ranks()[0], StateId(generation=1, step=1)))  # the other rank never came
    (run.folder / ".partial-other-1-3").mkdir()
    format.clear_partials(run)
    for step in (5, 6, 7):
        written(run, tmp_path, ranks(), StateId(generation=1, step=step))
    assert sorted(os.listdir(run.folder)) == ["step-00000006", "step-00000007"]
    assert [one.step for one in complete_checkpoints(run.folder)] == [7, 6]


def test_without_its_marker_it_is_none(run: CheckpointRun, tmp_path: Path) -> None:
    path = written(run, tmp_path, ranks())
    (path / "deadpool.json").write_text("{")
    assert complete_checkpoints(run.folder) == []
    assert read_marker(path) is None


def test_a_damaged_slot_is_not_written_and_a_damaged_file_not_restored(run: CheckpointRun, tmp_path: Path) -> None:
    torn = slot(tmp_path, 0, ranks()[0])
    header = torn.header()
    assert header is not None
    torn.data(header)[3] ^= 1
    with pytest.raises(SnapshotError, match="fails its checksum"):
        write_part(run, torn)
    path = written(run, tmp_path, ranks())
    data = path / "__1_0.distcp"
    raw = bytearray(data.read_bytes())
    at = raw.index(SHARDED[3:].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for damaged in (at, len(raw) - 1):  # a tensor; the metadata, which come last
        raw[damaged] ^= 1
        data.write_bytes(raw)
        restore_tables(path, 0)
        with pytest.raises(SnapshotError):
            restore_tables(path, 1)
        raw[damaged] ^= 1


def test_what_peers_should_hold_and_do_not_fails_the_checkpoint(run: CheckpointRun, tmp_path: Path) -> None:
    held = ranks()
    held[1]["model/model.module.weight"] = (WEIGHT + 5, (0,))
    write_part(run, slot(tmp_path, 0, held[0]))
    write_part(run, slot(tmp_path, 1, held[1]))
    with pytest.raises(SnapshotError, match="none has these bytes"):
        complete(run, STATE)
    assert complete_checkpoints(run.folder) == []


def test_from_which_checkpoint_a_job_starts(run: CheckpointRun, tmp_path: Path) -> None:
    older = written(replace(run, job_id="old"), tmp_path, ranks(), StateId(generation=1, step=9))
    own = written(run, tmp_path, ranks(), StateId(generation=1, step=4))
    keeping = Keeping(job_id="job", checkpoint_dir=str(run.folder), resume="auto")

    def path(keeping: Keeping, generation: int) -> Path | None:
        return next((one.path for one in candidates(keeping, generation)), None)

    assert path(keeping, 1) == own  # the newest by time
    assert path(replace(keeping, resume="never"), 1) is None
    assert path(replace(keeping, resume="never"), 2) == own
    assert path(replace(keeping, resume="never", job_id="another"), 2) is None
    assert path(replace(keeping, resume=str(older)), 1) == older
    assert path(replace(keeping, resume=str(older)), 2) == own


def test_a_checkpoint_that_one_rank_cannot_read_is_passed_over_by_all(run: CheckpointRun, tmp_path: Path) -> None:
    good = written(run, tmp_path, ranks(), StateId(generation=1, step=4))
    bad = written(run, tmp_path, ranks(), StateId(generation=1, step=9))
    keeping, store, found = (
        Keeping(job_id="job", checkpoint_dir=str(run.folder), resume="auto"),
        HashStore(),
        dict[int, Path | str | None](),
    )
    unreadable = {bad}

    def resume(rank: int) -> None:
        def load(path: Path) -> None:
            if path in unreadable and rank == 1:
                raise SnapshotError(f"checkpoint {path}: it is bad")

        try:
            chosen = agree(store, keeping, rank, 2, 1, Event(), load)
            found[rank] = chosen.path if chosen is not None else None
        except ConfigError as error:
            found[rank] = str(error)

    for expected in (good, f"no checkpoint can be read: {bad}, {good}"):
        threads = [Thread(target=resume, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert all(str(found[rank]).startswith(str(expected)) for rank in range(2)), found
        unreadable.add(good)
        store = HashStore()


def test_names() -> None:
    assert public_name("model/model.module.blocks.0.weight@0+4") == ("model", "blocks.0.weight")
    assert public_name("model/critic._orig_mod.module.head") == ("critic", "head")
    assert public_name("optimizer/optimizer.optim/model.module.head/exp_avg") == ("optimizer", "state", "head", "exp_avg")
