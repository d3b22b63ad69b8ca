"""What scripts do to their tensors behind the version counters: in a step that is discarded, and while a state is copied."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from only_rank import OnlyRank
from torch import Tensor, nn

from deadpool.proto.messages import ProtectionChanged
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.controller import Protection
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine, Point, Ticket
from deadpool.trainer_hooks.protection.gather import Gather
from deadpool.trainer_hooks.protection.outside_writes import WATCHED_STATES
from deadpool.trainer_hooks.state.training_state import TrainingState

S0 = StateId(generation=1, step=0)


class WritingEngine(CpuEngine):
    """While it reads or copies, the step that runs meanwhile writes to what is copied."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor], point: Point) -> Ticket:
        self.meanwhile()
        return super().copy(sources, targets, point)

    def gather(self, gather: Gather, addresses: NDArray[numpy.uint64], file: int, offset: int) -> None:
        self.meanwhile()
        super().gather(gather, addresses, file, offset)

    def in_place(self, source: Tensor) -> memoryview | None:
        self.meanwhile()
        return super().in_place(source)


class Training:
    """A rank at S_0, protected. `still`: in the optimizer, and never changed by it."""

    def __init__(self, folder: Path) -> None:
        self.engine = WritingEngine()
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.weight = self.model.get_parameter("0.weight")
        self.model.register_parameter("still", nn.Parameter(torch.ones(4), requires_grad=False))
        self.still = self.model.get_parameter("still")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        self.step()
        self.state = state = TrainingState(models={"model": self.model}, optimizers={"optimizer": self.optimizer}, extra={})
        self.session = OnlyRank(folder)
        self.protection = Protection(self.session, state, self.engine, on_commit=lambda: None)
        self.session.member.begun(0)
        assert self.protection.first(S0)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).sum().backward()
        self.optimizer.step()

    def advance(self, before_optimizer: Callable[["Training"], None] = lambda training: None) -> int:
        """Goes to the next state, which is protected; returns its step once it is known what has become of that."""
        member = self.session.member
        assert member.live is not None
        step = member.live.step
        before_optimizer(self)
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).sum().backward()
        self.protection.fence()
        self.state.step_begins()
        self.state.optimizer_steps(self.optimizer)
        self.optimizer.step()
        assert member.boundary(step)
        assert member.had()
        self.at_boundary = {held.key: held.tensor.clone() for held in self.state.held()}
        self.protection.protect()
        self.protection.wait_done(step + 1)
        return step + 1

    def copied(self) -> dict[str, Tensor]:
        """Returns what the own slot holds of the newest state."""
        assert self.session.member.live is not None
        slot = self.protection.own_slots().find(self.session.member.live)
        assert slot is not None
        return slot.tensors()

    def bytes(self) -> list[torch.Tensor]:
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [value for entries in self.optimizer.state.values() for value in entries.values()]
        return [tensor.detach().clone() for tensor in tensors]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path)
    yield training
    training.protection.close()


def double(training: Training) -> None:
    training.weight.data.mul_(2)


def double_the_still(training: Training) -> None:
    training.still.data.mul_(2)


def assign(training: Training) -> None:
    training.weight.data = training.weight.data * 2


def assign_the_same(training: Training) -> None:
    """Nothing changes yet, but what was captured is not what the next step changes."""
    training.weight.data = training.weight.data.clone()


def set_memory(training: Training) -> None:
    with torch.no_grad():
        training.weight.set_(torch.ones(4, 4))  # type: ignore[call-overload]


def write_a_view(training: Training) -> None:
    training.weight.data[1].add_(1)


def write_as_a_collective_does(training: Training) -> None:
    training.weight.detach().numpy()[2, 2] += 1


def write_optimizer_state(training: Training) -> None:
    training.optimizer.state[training.weight]["exp_avg"].data.add_(1)


def write_and_go_back(training: Training) -> None:
    training.weight.data.neg_().neg_()


CHANGES = [double, assign, assign_the_same, set_memory, write_a_view, write_as_a_collective_does, write_optimizer_state]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_version_counter_cannot_see_ends_the_live_state(training: Training, change: Callable[[Training], None]) -> None:
    change(training)
    assert not training.protection.quiesce()


@pytest.mark.parametrize("change", [lambda training: None, write_and_go_back, lambda training: training.model(torch.ones(2, 4))])
def test_a_process_whose_bytes_are_the_snapshot_s_keeps_them(training: Training, change: Callable[[Training], None]) -> None:
    before = training.bytes()
    change(training)
    assert training.protection.quiesce()
    training.protection.restore_live(S0)
    assert all(map(torch.equal, training.bytes(), before))  # buffers that the discarded forward has changed, too


def test_a_live_state_that_no_slot_holds_is_not_believed(training: Training) -> None:
    training.protection.own_slots().discard(S0)
    assert not training.protection.quiesce()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*CHANGES, write_and_go_back]), max_size=4))
def test_whatever_was_done_the_state_comes_back(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Callable[[Training], None]]
) -> None:
    training = Training(tmp_path_factory.mktemp("vault"))
    before = training.bytes()
    for change in changes:
        change(training)
    same = all(map(torch.equal, training.bytes(), before))
    clean = training.protection.quiesce()
    assert same or not clean
    if clean:
        training.protection.restore_live(S0)
    else:
        assert training.protection.restore_own()
    assert all(map(torch.equal, training.bytes(), before))
    training.protection.close()


def write_by_foreach(training: Training) -> None:
    torch._foreach_add_([training.weight.data], 1.0)


HABITS = [double, write_a_view, write_as_a_collective_does, write_by_foreach]


@pytest.mark.parametrize("habit", HABITS)
def test_what_a_script_writes_in_each_step_is_cloned_before_any_copy_can_be_torn(
    training: Training, habit: Callable[[Training], None]
) -> None:
    for _ in range(WATCHED_STATES):
        training.advance(habit)
    training.engine.meanwhile = lambda: habit(training)
    for _ in range(3):
        step = training.advance()
        copied = training.copied()
        assert all(torch.equal(copied[key], tensor) for key, tensor in training.at_boundary.items())
        assert training.session.member.commit_step == step


def test_the_first_write_to_what_stood_still_costs_a_commit_and_no_truth(training: Training) -> None:
    while training.advance() < WATCHED_STATES + 2:
        pass
    training.engine.meanwhile = lambda: double_the_still(training)
    step = training.advance()
    assert training.session.member.commit_step == step - 1
    (said,) = [each for each in training.session.sent if isinstance(each, ProtectionChanged)]
    assert "still may have been changed while it was copied" in said.reason
    training.engine.meanwhile = lambda: None
    assert training.advance(double_the_still) == training.session.member.commit_step == step + 1
    training.engine.meanwhile = lambda: double_the_still(training)
    for _ in range(WATCHED_STATES):
        training.advance(double_the_still)
    copied = training.copied()
    assert all(torch.equal(copied[key], tensor) for key, tensor in training.at_boundary.items())


def test_what_the_optimizer_changes_past_the_version_counter_is_not_cloned(training: Training) -> None:
    """As ZeroRedundancyOptimizer does with the parts of the others."""
    step = training.optimizer.step

    def raw_step() -> None:
        step()
        training.still.data.add_(1)

    training.optimizer.step = raw_step  # type: ignore[method-assign,assignment]
    for _ in range(WATCHED_STATES + 3):
        assert training.advance() == training.session.member.commit_step
    assert training.protection.boundary is not None
    cloned = set(range(len(training.state.held()))) - set(training.protection.boundary.shared)
    assert all(training.state.held()[index].volatile for index in cloned)


def test_a_rank_says_what_it_holds(training: Training) -> None:
    training.advance()
    described = training.protection.describe()
    held = training.state.held()
    assert (described.rank, described.step) == (0, 1)
    assert {row.group: row.items for row in described.holdings} == {
        "parameters": len(list(training.model.parameters())),
        "buffers": len(list(training.model.buffers())),
        "optimizer state": sum(len(state) for state in training.optimizer.state.values()),
        "extras and metadata": 1,
    }
    assert sum(row.size_bytes for row in described.holdings[:-1]) == sum(each.tensor.nbytes for each in held)
    assert not any(row.ranks for row in described.holdings)
