"""What belongs to the state and would not be in a snapshot is named before anybody relies on it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from small_training import CHANGE_AT, Training
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from trainings import KINDS

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.trainer_hooks.state.metadata import pack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState

PLAIN_KINDS = [kind for kind in KINDS if not kind.__name__.startswith("Fsdp")]


class _Thing:
    pass


class _WithObject(torch.optim.SGD):
    """Keeps an object of its own class from its third step on."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter]
            kept["count"] = kept.get("count", 0) + 1
            if kept["count"] > CHANGE_AT:
                kept["thing"] = _Thing()
        return super().step()


class ObjectLater(Training):
    named = r"optimizer\.state\[model\.0\.weight\]/thing: a .*_Thing"

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"optimizer": _WithObject(self.model.parameters(), lr=0.1)}


class ModuleAdded(Training):
    named = r"model\.late: a module that was added after protect"

    def before(self, step: int) -> None:
        if step == CHANGE_AT:
            self.model.add_module("late", nn.Linear(4, 4))


class TiedLate(Training):
    """The optimizer goes on with a parameter that no module has any more."""

    named = r"model/optimizer\.#2: a parameter of the optimizer that is in no model"

    def before(self, step: int) -> None:
        if step == CHANGE_AT:
            self.model.get_submodule("2").weight = self.model.get_submodule("0").weight


class SchedulerLater(Training):
    named = "optimizer: its learning-rate scheduler is not in protect"

    def before(self, step: int) -> None:
        if step == CHANGE_AT:
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizers["optimizer"], 0.9)


class Sparse(Training):
    named = r"buffer/model\.sparse: is sparse_coo, not dense"

    def before(self, step: int) -> None:
        if step == CHANGE_AT:
            self.model.register_buffer("sparse", torch.eye(3).to_sparse())


class _Packed(nn.Module):
    """Saves a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.packed: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.packed is not None:
            destination[f"{prefix}packed"] = self.packed


class SavedOtherwise(Training):
    named = r"model\.3\.packed: a tensor of the model's state_dict that is neither parameter nor buffer"

    def make_model(self) -> nn.Module:
        return nn.Sequential(*super().make_model().children(), _Packed())

    def before(self, step: int) -> None:
        if step == CHANGE_AT:
            self.model.get_submodule("3").packed = torch.ones(2)
            self.model.register_buffer("other", torch.zeros(1))  # what is saved is looked at when the tensors change


@pytest.mark.parametrize("kind", [ObjectLater, ModuleAdded, TiedLate, SchedulerLater, Sparse, SavedOtherwise])
def test_what_appears_later_refuses_the_state_in_which_it_does(kind: Any) -> None:
    training = kind()
    for step in range(CHANGE_AT + 1):
        training.state.held()
        assert pack_meta(training.state.capture_meta())
        training.step(step)
    training.state.held()
    with pytest.raises(SnapshotError, match=kind.named):
        pack_meta(training.state.capture_meta())


@pytest.mark.parametrize("kind", [ObjectLater, SchedulerLater])
def test_without_strict_it_is_a_warning_said_once(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Lenient(kind):  # type: ignore[misc]
        strict = False

    training = Lenient()
    for step in range(CHANGE_AT + 3):
        training.step(step)
        training.state.held()
        assert pack_meta(training.state.capture_meta())
    assert len({record.getMessage() for record in caplog.records}) == len(caplog.records) > 0


@pytest.mark.parametrize("kind", PLAIN_KINDS, ids=lambda kind: kind.__name__)
def test_of_what_can_be_restored_nothing_is_missing(kind: Callable[[], Training]) -> None:
    training = kind()
    for step in range(CHANGE_AT + 2):
        training.state.held()
        training.state.check(training.state.capture_meta())
        training.step(step)


def state_of(**more: Any) -> TrainingState:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainingState(models={"model": model}, optimizers={"optimizer": optimizer}, **{"extra": {}, **more})


class _Exotic:
    def state_dict(self) -> dict[str, object]:
        return {"path": Path("x")}

    def load_state_dict(self, state_dict: dict[str, object]) -> None: ...


def test_an_extra_that_could_not_be_read_back_is_refused() -> None:
    state = state_of(extra={"loader": _Exotic()})
    with pytest.raises(ConfigError, match=r"cannot be restored safely: extra\['loader'\]/path: a pathlib"):
        state.check(state.capture_meta())


@pytest.mark.parametrize("extra", [object(), random, nn.Linear])
def test_an_extra_without_a_state_is_refused_by_name(extra: Any) -> None:
    with pytest.raises(ConfigError, match="'what'"):
        state_of(extra={"what": extra})


def test_a_name_that_would_be_ambiguous_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a/b' cannot be the name"):
        TrainingState(models={"a/b": nn.Linear(1, 1)}, optimizers={}, extra={})


def test_a_scheduler_that_is_not_registered_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    state = TrainingState(models={"model": model}, optimizers={"optimizer": optimizer}, extra={})
    with pytest.raises(ConfigError, match="learning-rate scheduler"):
        state.check(state.capture_meta())
    state = TrainingState(models={"model": model}, optimizers={"optimizer": optimizer}, extra={"scheduler": scheduler})
    state.check(state.capture_meta())


def test_a_module_without_a_shape_is_refused() -> None:
    state = TrainingState(models={"model": nn.LazyLinear(2)}, optimizers={}, extra={})
    with pytest.raises(ConfigError, match="no shape before the first forward"):
        state.check(state.capture_meta())


class _Failing(nn.Linear):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not now")


class _FailingOptimizer(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not now")


def test_a_state_dict_that_fails_is_named_and_ends_nothing() -> None:
    model = _Failing(2, 2)
    state = TrainingState(models={"m": model}, optimizers={"o": _FailingOptimizer(model.parameters(), lr=0.1)}, extra={})
    assert state.capture_meta()["gaps"] == [
        "m: its state_dict() fails: RuntimeError('not now')",
        "o.state_dict(): it fails: RuntimeError('not now')",
    ]


def test_a_ddp_in_its_join_is_named() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        state = TrainingState(models={"model": ddp}, optimizers={}, extra={})
        with ddp.join():
            torch.autograd.backward(ddp(torch.ones(1, 2)).sum())
        ddp.module.register_buffer("new", torch.ones(1))  # what a state misses is looked at when its tensors change
        state.held()
        assert state.capture_meta()["gaps"][0].startswith("model: within DDP's join()")
    finally:
        dist.destroy_process_group()
