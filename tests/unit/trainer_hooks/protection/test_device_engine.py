"""Copies off a device whose work runs late: whatever the order, a slot has the bytes of its state, or is not sealed."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from only_rank import OnlyRank
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.controller import Protection
from deadpool.trainer_hooks.protection.device_engine import DeviceEngine
from deadpool.trainer_hooks.protection.outside_writes import WATCHED_STATES
from deadpool.trainer_hooks.state.training_state import TrainingState
from deadpool.trainer_hooks.torch_internals import TorchDispatchMode, tree_leaves


class Late(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What this thread computes on the device's memory runs late, as on a device; reading a value waits for it."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device, aliases = self._device, [each.alias_info for each in function._schema.arguments if each.alias_info is not None]
        if not any(isinstance(each, Tensor) and device.has(each) for each in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        if torch.Tag.data_dependent_output in function.tags:
            device.mark().wait()
        elif any(each.is_write for each in aliases):
            later = tree_map_only(Tensor, lambda each: each.data, (args, kwargs))  # its version is counted already
            device.compute(lambda: function(*later[0], **later[1]))
            return args[0]
        elif not aliases and isinstance(now := function(*args, **kwargs), Tensor):
            made = device.own(torch.zeros_like(now))
            device.compute(lambda: made.copy_(function(*args, **kwargs)))
            return made
        return function(*args, **kwargs)


class Model(nn.Module):
    """Large, small, of several types, apart in memory, empty, and one that lives on the host."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        tensors = {
            "large": torch.rand(50_000),
            **{f"small{index}": torch.rand(index + 1) for index in range(30)},
            **{f"half{index}": torch.rand(3, 5).to(torch.bfloat16) for index in range(5)},
            "apart": torch.rand(7, 9).t(),
            "empty": torch.rand(0),
        }
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(device.own(tensor)))
        self.register_parameter("on_host", nn.Parameter(torch.rand(3)))
        self.register_buffer("average", device.own(torch.zeros(300)))


class Training:
    """A rank on such a device, with the real protection, and beside it what its states should be."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.manual_seed(seed)
        self.device = FakeDevice(seed)
        self.engine = DeviceEngine(self.device)
        self.engine.group_bytes = 20_000
        self.model = Model(self.device)
        self.state = TrainingState(models={"model": self.model}, optimizers={}, extra={})
        self.session = OnlyRank(folder)
        self.protection = Protection(self.session, self.state, self.engine, on_commit=lambda: None)
        self.session.member.begun(0)
        self.truth: dict[int, dict[str, Tensor]] = {}
        self._keep(0)
        with Late(self.device):
            assert self.protection.first(StateId(generation=1, step=0))

    def _keep(self, step: int) -> None:
        self.truth[step] = {held.key: held.tensor.detach().clone() for held in self.state.held()}

    def step(self, collective_of: "Collectives | None" = None) -> int:
        """Makes the next step; all that it changes on the device is changed late. Returns the step that is then complete."""
        member = self.session.member
        assert member.live is not None
        step = member.live.step
        self.state.step_begins()
        truth = {key: value + 1 for key, value in self.truth[step].items()}
        with Late(self.device), torch.no_grad():
            self.model.get_buffer("average").add_(1)
            if collective_of is not None:
                collective_of.wait_for_peers()
            self.protection.fence()
            for parameter in self.model.parameters():
                parameter.add_(1)
            if collective_of is not None:
                collective_of.spoil(self.model.get_parameter("small0"))
            assert member.boundary(step)
            assert member.had()
            self.truth[step + 1] = truth
            self.protection.protect()
        return step + 1

    def unwatched(self) -> int:
        """Steps until the main thread does not wait for the copies any more; returns the step of the state that is committed."""
        for _ in range(WATCHED_STATES):
            step = self.step()
        self.protection.wait_done(step)
        return step

    def check(self) -> list[int]:
        """Returns the steps of the states that lie in the slots; each is the true one."""
        slots, steps = self.protection.own_slots(), []
        for held in slots.held():
            slot = slots.find_whole(held) if held is not None else None
            if held is not None and slot is not None:
                steps.append(held.step)
                assert all(torch.equal(copy, self.truth[held.step][key]) for key, copy in slot.tensors().items()), held
        return sorted(steps)

    def break_up(self) -> None:
        """As a session does, short of the abort itself."""
        self.session.cancelled.set()
        self.protection.generation_over()
        self.protection.abort_begins()


class Collectives:
    """In a step: what the device does behind it is garbage where the collective was aborted."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.aborted = False

    def wait_for_peers(self) -> None:
        self.pending = self._device.collective()

    def spoil(self, tensor: Tensor) -> None:
        self._device.compute(lambda: self.aborted and tensor.data.fill_(float("nan")))


@contextmanager
def training(folder: Path, seed: int) -> Iterator[Training]:
    folder.mkdir()
    made = Training(folder, seed)
    try:
        yield made
    finally:
        made.session.cancelled.set()
        made.protection.close()


@pytest.mark.parametrize("seed", range(8))
def test_every_slot_has_the_bytes_of_its_state(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with training(tmp_path / "vault", seed) as made:
        for _ in range(8):
            step = made.step()
            if chance.random() < 0.5:
                made.protection.wait_done(step)
                assert step in made.check()
        made.protection.wait_done(step)
        assert made.check() == [step - 1, step]
        assert not made.protection._local.outside_writes.keys
        assert len(set(made.device.pinned)) == len(made.device.pinned) == 2


def test_the_fence_holds_the_update_back() -> None:
    for seed in range(20):
        device = FakeDevice(seed)
        engine, sources, targets = DeviceEngine(device), [device.own(torch.ones(3)) for _ in range(2)], torch.zeros(2, 16)
        ticket = engine.copy(sources, [target[:3] for target in targets], engine.at_boundary())
        engine.fence()
        for source in sources:
            device.compute(partial(source.fill_, 2))
        device.mark().wait()
        engine.landed(ticket)
        assert bool((targets[:, :3] == 1).all())


def test_neighbours_leave_the_device_together(tmp_path: Path) -> None:
    with training(tmp_path / "vault", 0) as made:
        made.protection.wait_done(made.step())
        before = made.device.runs
        made.protection.wait_done(made.step())
        large_parts, apart, others = 200_000 // 20_000, 1, 3
        assert made.device.runs - before <= large_parts + apart + others


@pytest.mark.parametrize("seed", range(5))
def test_a_state_behind_an_aborted_collective_counts_for_nothing(tmp_path: Path, seed: int) -> None:
    with training(tmp_path / "vault", seed) as made:
        good = made.unwatched()
        collectives = Collectives(made.device)
        made.step(collectives)
        made.break_up()
        collectives.aborted = True
        made.device.end(collectives.pending)
        assert not made.protection.quiesce()
        assert good in made.check()
        assert good + 1 not in made.check()


@pytest.mark.parametrize("seed", range(5))
def test_a_state_that_was_complete_before_the_abort_counts(tmp_path: Path, seed: int) -> None:
    with training(tmp_path / "vault", seed) as made:
        made.unwatched()
        collectives = Collectives(made.device)
        complete = made.step(collectives)
        made.device.end(collectives.pending)
        made.device.mark().wait()
        made.break_up()
        collectives.aborted = True
        with Late(made.device):
            assert made.protection.quiesce()
        assert complete in made.check()


def test_a_state_that_the_host_completes_behind_the_abort_counts_for_nothing(tmp_path: Path) -> None:
    """Its step was complete for the host before; the loop's body ended later."""
    with training(tmp_path / "vault", 3) as made:
        made.unwatched()
        made.protection.abort_begins()
        late = made.step()
        made.protection.wait_done(late)
        assert late not in made.check()
        made.session.cancelled.set()
        assert not made.protection.quiesce()
