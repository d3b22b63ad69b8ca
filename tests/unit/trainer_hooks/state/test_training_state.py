"""What the state consists of, what comes back from a slot, and how large it will be."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from deadpool.host.errors import SnapshotError
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.layout import SLOT_NAMES, Tables, checksum, reserve, slot_path
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine
from deadpool.trainer_hooks.protection.restore import from_own_slot
from deadpool.trainer_hooks.protection.slots import OwnSlots, capacity
from deadpool.trainer_hooks.protection.snapshot import layout_of
from deadpool.trainer_hooks.state.metadata import pack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState


class Training:
    """A small model with buffers, an optimizer with state, a scheduler."""

    def __init__(self, width: int = 4) -> None:
        self.model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.5))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.9)
        self.width = width
        self.state = TrainingState(
            models={"model": self.model}, optimizers={"optimizer": self.optimizer}, extra={"scheduler": self.scheduler}
        )

    def step(self) -> float:
        loss: torch.Tensor
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(3, self.width)).square().mean()
        torch.autograd.backward(loss)
        self.state.optimizer_steps(self.optimizer)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item() + random.random()


def save(training: Training, folder: Path, state: StateId) -> OwnSlots:
    """Writes the training's state to a slot as the protect thread does."""
    held = training.state.held()
    layout = layout_of(held, {})
    meta = pack_meta(training.state.capture_meta())
    size_bytes, data_offset = capacity(layout.data_bytes, len(layout.items), len(meta))
    for name in SLOT_NAMES:
        reserve(slot_path(folder, SlotKind.SNAPSHOT, 0, name), size_bytes)
    slots = OwnSlots(folder, 0, CpuEngine())
    index, _ = slots.to_write((-1,), size_bytes)
    by_key = {each.key: each.tensor for each in held}
    CpuEngine().copy([by_key[item.key] for item in layout.items], slots.targets(index, layout, data_offset), None)
    data = slots.data(index, data_offset, layout)
    sums = [checksum(data[item.offset : item.offset + item.nbytes]) for item in layout.items]
    slots.seal(index, state, Tables(layout=layout, meta=meta, checksums=sums), data_offset)
    return slots


def test_the_steps_after_a_restore_are_the_same(tmp_path: Path) -> None:
    training, state = Training(), StateId(generation=1, step=2)
    training.step()
    training.step()
    slots = save(training, tmp_path, state)
    expected = [training.step() for _ in range(3)]
    from_own_slot(training.state, slots, state, "node0")
    assert [training.step() for _ in range(3)] == expected


def test_a_joiner_gets_the_state_whatever_it_has_rehearsed(tmp_path: Path) -> None:
    training, state = Training(), StateId(generation=1, step=0)
    slots = save(training, tmp_path, state)  # S_0: the optimizer holds nothing yet
    expected = [training.step() for _ in range(3)]
    joiner = Training()
    joiner.step()
    from_own_slot(joiner.state, slots, state, "node0")
    assert not joiner.optimizer.state
    assert [joiner.step() for _ in range(3)] == expected


def test_missing_optimizer_state_is_made(tmp_path: Path) -> None:
    training, state = Training(), StateId(generation=1, step=1)
    training.step()
    slots = save(training, tmp_path, state)
    expected = training.step()
    fresh = Training()
    from_own_slot(fresh.state, slots, state, "node0")
    assert fresh.step() == expected


def test_a_damaged_item_is_never_restored_and_its_slot_is_given_up(tmp_path: Path) -> None:
    training, state = Training(), StateId(generation=1, step=0)
    slots = save(training, tmp_path, state)
    slot = slots.find(state)
    assert slot is not None
    slot.data[5] ^= 1
    before = [parameter.clone() for parameter in training.model.parameters()]
    with pytest.raises(SnapshotError, match="fails its checksum"):
        from_own_slot(training.state, slots, state, "node0")
    assert all(torch.equal(now, then) for now, then in zip(training.model.parameters(), before, strict=True))
    assert slots.find(state) is None


def test_a_sealed_slot_is_taken_for_the_state_only_if_it_is_whole(tmp_path: Path) -> None:
    """A survivor that goes back to the state which it holds would else replicate and commit the bad copy."""
    training, state = Training(), StateId(generation=1, step=0)
    slots = save(training, tmp_path, state)
    slot = slots.find_whole(state)
    assert slot is not None
    slot.data[5] ^= 1
    assert slots.find_whole(state) is None
    assert slots.held() == [None, None]


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    slots = save(Training(), tmp_path, StateId(generation=1, step=0))
    with pytest.raises(SnapshotError, match=r"another model|the model"):
        from_own_slot(Training(width=5).state, slots, StateId(generation=1, step=0), "node0")


def test_the_list_of_tensors_is_made_anew_only_when_they_change() -> None:
    training = Training()
    first = training.state.held()
    assert training.state.held() is first
    training.step()
    assert training.state.held() is not first
    assert {each.key for each in training.state.held() if each.volatile} == {
        f"buffer/model.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def _assign_data(training: Training) -> None:
    weight = training.model.get_parameter("0.weight")
    weight.data = weight.data * 2


def _transpose_data(training: Training) -> None:
    weight = training.model.get_parameter("0.weight")
    weight.data = weight.data.t()


def _shrink_buffer(training: Training) -> None:
    training.model.get_buffer("1.running_mean").resize_(2)


def _assign_state(training: Training) -> None:
    entries = training.optimizer.state[training.model.get_parameter("0.weight")]
    entries["exp_avg"].data = entries["exp_avg"] + 1


@pytest.mark.parametrize("move", [_assign_data, _transpose_data, _shrink_buffer, _assign_state])
def test_what_is_held_is_the_memory_that_the_model_uses(move: Callable[[Training], None]) -> None:
    """`p.data = x` keeps the Parameter: a snapshot of the memory it had before would be one of bytes that nobody updates."""
    training = Training()
    training.step()
    before = training.state.held()
    move(training)
    held = {each.key: each.tensor for each in training.state.held()}
    assert training.state.held() is not before
    assert torch.equal(held["model/model.0.weight"], training.model.get_parameter("0.weight"))
    assert held["buffer/model.1.running_mean"].shape == training.model.get_buffer("1.running_mean").shape
    entries = training.optimizer.state[training.model.get_parameter("0.weight")]
    assert torch.equal(held["optimizer/optimizer/model.0.weight/exp_avg"], entries["exp_avg"])
    assert training.state.held() is training.state.held()


def test_a_parameter_is_held_under_the_name_that_it_has_now() -> None:
    training = Training()
    training.step()
    first = training.state.held()
    layer = training.model.get_submodule("0")
    layer._parameters = {f"new_{name}": parameter for name, parameter in layer._parameters.items()}
    assert {each.key for each in training.state.held()} >= {"model/model.0.new_weight", "model/model.0.new_bias"}
    assert training.state.held() is not first


def _other_data(parameter: torch.Tensor) -> None:
    parameter.data = parameter.data.clone()


@torch.no_grad()
def _other_storage(parameter: torch.Tensor) -> None:
    parameter.set_(parameter.clone())  # type: ignore[call-overload]  # a tensor alone will do


def _larger_storage(parameter: torch.Tensor) -> None:
    parameter.untyped_storage().resize_(1 << 20)


@pytest.mark.parametrize("change", [_other_data, _other_storage, _larger_storage])
@pytest.mark.parametrize("waits", [True, False])
def test_other_memory_is_held_where_gradients_begin_or_end_to_wait_at_the_same_boundary(
    change: Callable[[torch.Tensor], None], waits: bool
) -> None:
    training = Training()
    weight = next(training.model.parameters())
    training.step()
    for unused in (not waits, waits):
        training.state.step_begins()
        training.step()
        if unused:
            training.state.step_begins()  # the gradients that are there wait for the optimizer's next step
        address = weight.data_ptr()
        if unused is waits:
            change(weight)
            assert weight.data_ptr() != address
        held = training.state.held()
        tensors = {each.key: each.tensor for each in held}
        assert any(key.startswith("gradient/") for key in tensors) is unused
        assert tensors["model/model.0.weight"].is_set_to(weight)
        assert tensors["model/model.0.weight"].data_ptr() == weight.data_ptr()
        assert training.state.held() is held
