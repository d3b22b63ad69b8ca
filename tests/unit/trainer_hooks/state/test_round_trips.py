"""Every kind of training goes back to a state by every way there is, and goes on as if nothing had happened, to the bit."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from small_training import CHANGE_AT, Training
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from trainings import KINDS, Fsdp

from deadpool.proto.vault.layout import Item
from deadpool.trainer_hooks.protection.copy_engine import as_bytes
from deadpool.trainer_hooks.protection.snapshot import layout_of
from deadpool.trainer_hooks.state.items import local_part, put
from deadpool.trainer_hooks.state.metadata import GAPS, pack_meta, unpack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState

STATES = range(CHANGE_AT - 1, CHANGE_AT + 3)  # before and after the step in which something changes
STEPS = CHANGE_AT + 5


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Snapshot:
    """What a vault holds of a state: bytes."""

    def __init__(self, state: TrainingState) -> None:
        held = state.held()
        self.items: dict[str, Item] = {item.key: item for item in layout_of(held, {}).items}
        self.data = {each.key: each.tensor.clone(memory_format=torch.contiguous_format) for each in held}
        self.meta = pack_meta(state.capture_meta())

    def restore(self, state: TrainingState) -> None:
        meta = unpack_meta(self.meta)
        for key, target in state.fit(self.items, meta).items():
            with torch.no_grad():
                put(target, self.data[key])
        state.restore_meta(meta)

    def check(self, state: TrainingState) -> None:
        """The state is this one, and so is what the framework itself would save."""
        again = Snapshot(state)
        assert again.items.keys() == self.items.keys()
        assert [key for key, tensor in self.data.items() if not torch.equal(as_bytes(tensor), as_bytes(again.data[key]))] == []
        assert unpack_meta(again.meta).keys() == unpack_meta(self.meta).keys()


def digest(training: Training) -> str:
    """Returns a digest of what the frameworks' own state_dicts give, and how it lies in memory."""
    total = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            total.update(repr(local_part(value).stride()).encode())
            total.update(as_bytes(local_part(value)).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                total.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for part in value:
                add(part)
        else:
            total.update(repr(value).encode())

    for model in training.models.values():
        add(dict(model.state_dict()))
    for optimizer in training.optimizers.values():
        add(optimizer.state_dict())
    return total.hexdigest()


def advance(training: Training, first: int, until: int) -> list[float]:
    return [training.step(step) for step in range(first, until)]


def finish(training: Training, first: int) -> list[float | str]:
    """Returns the losses from that step on, and what the state is at the end."""
    return [*advance(training, first, STEPS), digest(training)]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Callable[[], Training]:
    found: Callable[[], Training] = request.param
    return found


def reached(kind: Callable[[], Training], step: int) -> tuple[Training, Snapshot, list[float | str]]:
    """Returns a training in S_step, a snapshot of that, and how the training goes on unbroken from there."""
    training = kind()
    advance(training, 0, step)
    expected = finish(training, step)
    training = kind()
    advance(training, 0, step)
    return training, Snapshot(training.state), expected


def test_a_survivor_goes_back_to_what_it_holds(kind: Callable[[], Training]) -> None:
    """A discarded step has run, without its optimizers."""
    for step in STATES:
        training, snapshot, expected = reached(kind, step)
        held = training.state.held()
        sources = [each.tensor.clone() if each.volatile else each.tensor for each in held]
        meta = training.state.capture_meta()
        training.stepping = False
        training.step(step)
        training.stepping = True
        training.state.zero_gradients()
        training.state.put_back(held, sources, meta)
        snapshot.check(training.state)
        assert finish(training, step) == expected


def test_a_rank_that_is_ahead_goes_back(kind: Callable[[], Training]) -> None:
    for step in STATES:
        training, snapshot, expected = reached(kind, step)
        advance(training, step, step + 2)
        snapshot.restore(training.state)
        snapshot.check(training.state)
        assert finish(training, step) == expected


@pytest.mark.parametrize("rehearsed", [0, 2])
def test_a_new_process_takes_over(kind: Callable[[], Training], rehearsed: int) -> None:
    """With two rehearsed steps behind it, as a joiner, or without, as in a resume from a checkpoint."""
    for step in STATES:
        _, snapshot, expected = reached(kind, step)
        joiner = kind()
        advance(joiner, step, step + rehearsed)
        snapshot.restore(joiner.state)
        snapshot.check(joiner.state)
        assert finish(joiner, step) == expected


def test_what_is_captured_does_not_change_afterwards(kind: Callable[[], Training]) -> None:
    training = kind()
    for step in range(STEPS):
        training.state.held()
        meta = training.state.capture_meta()
        before = pack_meta(meta)
        training.step(step)
        assert pack_meta(meta) == before


class Skipping(Training):
    """Every third step overflows: the scaler skips the optimizer."""

    def make_extra(self) -> dict[str, Any]:
        return {"scaler": torch.amp.GradScaler("cpu", init_scale=8.0)}

    def step(self, step: int) -> float:
        scaler, optimizer = self.extra["scaler"], self.optimizers["optimizer"]
        self.state.step_begins()
        optimizer.zero_grad()
        loss = self.loss(step) * (float("inf") if step % 3 == 1 else 1.0)
        torch.autograd.backward(scaler.scale(loss))
        if step % 3 != 1:
            self.state.optimizer_steps(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


def test_gradients_of_a_step_that_a_scaler_skips_are_nobodys() -> None:
    training = Skipping()
    for step in range(6):
        training.step(step)
        assert not any(each.key.startswith("gradient/") for each in training.state.held())
        training.state.capture_meta()
        assert not any(each.key.startswith("gradient/") for each in training.state.held())  # asked again


def test_gradients_that_wait_to_be_summed_are_named() -> None:
    """FSDP2 keeps them whole on every rank until then."""
    training = Fsdp()
    training.model.set_requires_gradient_sync(False)  # type: ignore[operator]
    training.stepping = False
    training.step(0)
    training.state.held()
    assert "model.0.weight: its gradient waits" in training.state.capture_meta()[GAPS][0]


def test_a_step_that_was_cut_off_between_two_batches_leaves_nothing_behind() -> None:
    """It had switched the summing of gradients off, and kept what the first batch gave."""
    training, snapshot, expected = reached(Fsdp, 2)
    training.model.set_requires_gradient_sync(False)  # type: ignore[operator]
    torch.autograd.backward(training.loss(2))
    training.state.zero_gradients()
    snapshot.restore(training.state)
    assert finish(training, 2) == expected


def test_the_list_of_what_is_held_is_kept_while_it_is_true() -> None:
    training = Training()
    advance(training, 0, 2)
    held = training.state.held()
    advance(training, 2, 4)
    assert training.state.held() is held
