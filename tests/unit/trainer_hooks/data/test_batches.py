"""A step gets its batches: the same ones again, in the same process, in another, after any way back; nothing else is drawn."""

import random
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.data.batches import STEPS_KEPT, FromLoader, StepBatches, batches_of
from deadpool.trainer_hooks.state import random_state

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata's
]

SAMPLES, BATCH, STEPS = 14, 4, 9


class Augmented(Dataset[Tensor]):
    """A sample is its index, and random numbers of every generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, torch.rand(()).item(), random.random(), numpy.random.random()], dtype=torch.float64)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for index in random.sample(range(SAMPLES), SAMPLES):
            yield Augmented()[index]


class Counted(Augmented):
    """With a state of its own."""

    given = 0

    def __getitem__(self, index: int) -> Tensor:
        self.given += 1
        return super().__getitem__(index) + self.given

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class ByEpoch:
    """A sampler that draws each index when it is asked, from python's generator, and wants to know the epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for _ in range(SAMPLES):
            yield (random.randrange(SAMPLES) + self.epoch) % SAMPLES


def own(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stateful(dataset: Any, **options: Any) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(dataset, batch_size=BATCH, **options)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: DataLoader(Augmented(), batch_size=BATCH, shuffle=True),
    "own generator": lambda: DataLoader(Augmented(), batch_size=BATCH, shuffle=True, generator=own(3)),
    "with replacement": lambda: DataLoader(
        Augmented(), batch_size=BATCH, sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=70, generator=own(5))
    ),
    "weighted": lambda: DataLoader(Augmented(), batch_size=BATCH, sampler=WeightedRandomSampler([1.0] * SAMPLES, 9)),
    "by epoch": lambda: DataLoader(Augmented(), batch_size=BATCH, sampler=ByEpoch(), drop_last=True),
    "unbatched": lambda: DataLoader(Augmented(), batch_size=None, shuffle=True),
    "stream": lambda: DataLoader(Stream(), batch_size=BATCH),
    "list": lambda: [{"a": torch.tensor(index), "b": (index, "text")} for index in range(5)],
    "function": lambda: lambda number: torch.tensor(number) + torch.rand(()),
    "stateful": lambda: stateful(Augmented(), shuffle=True),
    "stateful dataset": lambda: stateful(Counted(), shuffle=True, generator=own(4)),
    "stateful stream": lambda: stateful(Stream()),
}  # fmt: skip
WITH_WORKERS: dict[str, Callable[[], Any]] = {
    "workers": lambda: DataLoader(Augmented(), batch_size=BATCH, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(
        Augmented(), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True, generator=own(3)
    ),
    "stream, workers": lambda: DataLoader(Stream(), batch_size=BATCH, num_workers=2, persistent_workers=True),
    "stateful dataset, workers": lambda: stateful(Counted(), num_workers=2, shuffle=True),
}


class Process:
    """One that trains: its steps draw random numbers of their own, as dropout does."""

    def __init__(self, make: Callable[[], Any], per_step: int) -> None:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        self.batches: StepBatches = batches_of(make(), per_step)

    def state(self) -> Any:
        loader = self.batches.state_dict() if isinstance(self.batches, FromLoader) else None
        return loader, random_state.capture()

    def restore(self, state: Any) -> None:
        if isinstance(self.batches, FromLoader):
            self.batches.load_state_dict(state[0])
        random_state.restore(state[1])

    def step(self, step: int) -> str:
        batch = self.batches.of(step)
        text = repr(batch)
        if isinstance(batch, dict):
            batch.clear()  # what a step does to it stays with that step
        return f"{text} {torch.rand(3).tolist()} {random.random()} {numpy.random.random()}"


def unbroken(make: Callable[[], Any], per_step: int) -> tuple[list[Any], list[str]]:
    """Returns the state before each step, and what each step has seen."""
    process = Process(make, per_step)
    states, seen = [], []
    for step in range(STEPS):
        states.append(process.state())
        seen.append(process.step(step))
    return states, seen


def check(make: Callable[[], Any], per_step: int, ways: list[tuple[int, int, bool]]) -> None:
    """`ways`: at which step, back by how many, and whether in a new process, which has been through a step that did not count."""
    states, seen = unbroken(make, per_step)
    process, step = Process(make, per_step), 0
    for at, back, new in [*sorted(ways), (STEPS, 0, False)]:
        while step < at:
            assert process.step(step) == seen[step]
            step += 1
        step = max(0, at - back)
        if new:
            process = Process(make, per_step)
            process.step(step)
        elif step < STEPS:
            process.step(at) if at < STEPS else None  # the step that is under way
        if at < STEPS:
            process.restore(states[step])


ways = st.lists(st.tuples(st.integers(0, STEPS - 1), st.integers(0, STEPS_KEPT + 2), st.booleans()), max_size=4)


@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize("name", LOADERS)
@given(ways=ways, per_step=st.integers(1, 3))
def test_a_step_gets_the_same_batches_by_every_way_back(name: str, ways: list[tuple[int, int, bool]], per_step: int) -> None:
    check(LOADERS[name], per_step, ways)


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_workers_draw_the_same_wherever_they_begin(name: str) -> None:
    check(WITH_WORKERS[name], 1, [(2, 0, True), (5, 5, False), (7, 1, True)])


@pytest.mark.parametrize("name", [*LOADERS, *WITH_WORKERS])
def test_finding_batches_leaves_the_generators_alone(name: str) -> None:
    process = Process({**LOADERS, **WITH_WORKERS}[name], 2)
    before = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
    for step in range(4):
        process.batches.of(step)
    assert before[0].equal(torch.get_rng_state()) == (name != "function")  # whose random numbers are the script's own
    assert before[1:] == (random.getstate(), str(numpy.random.get_state()))


def test_a_batch_that_was_written_into_is_made_again() -> None:
    batches = batches_of([torch.zeros(2), torch.ones(2)], 1)
    assert isinstance(batches, FromLoader)
    state = batches.state_dict()
    batches.of(0).add_(5)
    batches.load_state_dict(state)
    made_again = batches_of(DataLoader(Augmented(), batch_size=2), 1)
    assert isinstance(made_again, FromLoader)
    state = made_again.state_dict()
    first = made_again.of(0)
    expected = first.clone()
    first.add_(5)
    made_again.load_state_dict(state)
    assert made_again.of(0).equal(expected)


def test_containers_are_the_steps_own_also_of_classes_of_others() -> None:
    batches = batches_of([UserDict(a=torch.tensor(1), b=numpy.arange(3))], 1)
    assert isinstance(batches, FromLoader)
    state = batches.state_dict()
    first = batches.of(0)
    first["b"][0] = 7
    del first["a"]
    batches.load_state_dict(state)
    assert batches.of(0)["a"] == 1
    assert batches.of(0)["b"][0] == 0


def test_the_last_step_of_an_epoch_gets_what_is_left_where_epochs_are_apart() -> None:
    apart, joined = batches_of(list("abcde"), 2, epochs_apart=True), batches_of(list("abcde"), 2)
    assert [apart.of(step) for step in range(4)] == [["a", "b"], ["c", "d"], ["e"], ["a", "b"]]
    assert [joined.of(step) for step in range(4)] == [["a", "b"], ["c", "d"], ["e", "a"], ["b", "c"]]


@pytest.mark.parametrize(
    ("loader", "problem"),
    [(iter([1]), "this is an iterator, which cannot go back"), (7, "not a loader: it has no __iter__"), ([], "has no batch")],
)
def test_what_cannot_be_a_loader_is_refused_in_one_line(loader: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        batches_of(loader, 1).of(0)


def test_a_step_takes_a_batch_at_least() -> None:
    with pytest.raises(ConfigError, match=r"accumulate=0"):
        batches_of([1], 0)
