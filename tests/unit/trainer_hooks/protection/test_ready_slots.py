"""A joiner's slots are there before it needs them, where there is room; what happens to the files meanwhile is noticed."""

from pathlib import Path

import pytest
import torch
from only_rank import OnlyRank
from torch import nn

from deadpool.host.errors import ConfigError
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.layout import SLOT_NAMES, Tables, grow, slot_path
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.controller import Protection
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine
from deadpool.trainer_hooks.protection.ready_slots import ReadySlots
from deadpool.trainer_hooks.protection.slots import OwnSlots
from deadpool.trainer_hooks.state.training_state import TrainingState


@pytest.fixture
def before(tmp_path: Path) -> tuple[Path, Tables]:
    """Returns the vault of the rank's process before, which has stepped once, and the tables of its snapshot."""
    folder = tmp_path / "before"
    folder.mkdir()
    model = nn.Linear(100, 100)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 100)).sum().backward()
    optimizer.step()
    state = TrainingState(models={"model": model}, optimizers={"optimizer": optimizer}, extra={})
    session = OnlyRank(folder)
    protection = Protection(session, state, CpuEngine(), on_commit=lambda: None)
    session.member.begun(0)
    assert protection.first(StateId(generation=1, step=0))
    protection.close()
    slot = protection.own_slots().find(StateId(generation=1, step=0))
    assert slot is not None
    return folder, slot.tables


def inodes(folder: Path) -> list[int]:
    return [slot_path(folder, SlotKind.SNAPSHOT, 0, name).stat().st_ino for name in SLOT_NAMES]


def test_they_are_as_large_as_the_predecessors_and_are_used_as_they_are_mapped(
    before: tuple[Path, Tables], tmp_path: Path
) -> None:
    session = OnlyRank(tmp_path)
    ready = ReadySlots(tmp_path, 0, before[1], session.reserve)
    mapped = ready.take()
    for name in SLOT_NAMES:
        sizes = [slot_path(folder, SlotKind.SNAPSHOT, 0, name).stat().st_size for folder in (tmp_path, before[0])]
        assert sizes[0] == sizes[1]
    slots = OwnSlots(tmp_path, 0, CpuEngine(), mapped)
    assert slots.are_current()
    index, _ = slots.to_write([], 0)
    assert slots._files[index] is mapped[slot_path(tmp_path, SlotKind.SNAPSHOT, 0, SLOT_NAMES[index])]
    grow(slot_path(tmp_path, SlotKind.SNAPSHOT, 0, "b"), 1 << 20)  # by whoever else has it mapped
    assert not slots.are_current()
    assert OwnSlots(tmp_path, 0, CpuEngine(), mapped).are_current()
    slot_path(tmp_path, SlotKind.SNAPSHOT, 0, "a").unlink()
    assert not slots.are_current()


def test_where_the_rank_lives_on_this_node_nothing_is_made(before: tuple[Path, Tables]) -> None:
    def reserve(snapshot_bytes: int, replica_bytes: int) -> None:
        raise AssertionError("they are the living rank's")

    folder, tables = before
    slot_path(folder, SlotKind.SNAPSHOT, 0, "b").unlink()  # as it is while that one makes it anew
    was = slot_path(folder, SlotKind.SNAPSHOT, 0, "a").read_bytes()
    assert [*ReadySlots(folder, 0, tables, reserve).take()] == [slot_path(folder, SlotKind.SNAPSHOT, 0, "a")]
    assert slot_path(folder, SlotKind.SNAPSHOT, 0, "a").read_bytes() == was


def test_without_room_it_is_as_if_none_had_been_asked_for(before: tuple[Path, Tables], tmp_path: Path) -> None:
    def reserve(snapshot_bytes: int, replica_bytes: int) -> None:
        raise ConfigError("rank 0 needs more than is free")

    assert ReadySlots(tmp_path, 0, before[1], reserve).take() == {}


def test_a_vault_that_was_emptied_meanwhile_gets_new_ones(before: tuple[Path, Tables], tmp_path: Path) -> None:
    session = OnlyRank(tmp_path)
    mapped = ReadySlots(tmp_path, 0, before[1], session.reserve).take()
    was = inodes(tmp_path)
    for path in mapped:
        path.rename(path.with_suffix(".gone"))  # so that no inode is used again
    session.reserve(1 << 20, 0)
    assert inodes(tmp_path) != was
    assert OwnSlots(tmp_path, 0, CpuEngine(), mapped).are_current()
