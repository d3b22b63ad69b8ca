"""The batches of a step, again: in the same process, and in a new one, with the random numbers that drawing them takes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deadpool.integrations.fetched import Fetched
from deadpool.trainer_hooks.state import random_state

Open = Callable[[int, int], Iterator[Tensor]]
BATCHES, EPOCHS = 7, 3


def drawn(number: int) -> Tensor:
    """A batch whose content is drawn as it is fetched."""
    return torch.cat([torch.tensor([float(number)]), torch.rand(2)])


def in_order(epoch: int, first: int) -> Iterator[Tensor]:
    """Shuffled by a draw when it is opened; each batch is drawn when it is asked for."""
    order = torch.randperm(BATCHES).tolist()[first:]
    for number in order:
        yield drawn(100 * epoch + number)


def one_ahead(epoch: int, first: int) -> Iterator[Tensor]:
    """The same, but always one batch ahead, as accelerate's loader."""
    source = in_order(epoch, first)
    held = next(source)
    for following in source:
        yield held
        held = following
    yield held


def as_it_was_consumed(epoch: int, first: int) -> Iterator[Tensor]:
    """What each batch holds depends on how many were drawn before, as in a loader's workers: nothing can be skipped."""
    source = torch.Generator().manual_seed(int(torch.randint(1000, ())))
    for number in range(first, BATCHES):
        yield torch.cat([torch.tensor([float(number)]), torch.rand(2, generator=source)])


class Process:
    """A training that draws its batches through Fetched, and random numbers of its own in each step."""

    def __init__(self, open_at: Open, per_step: int) -> None:
        self.fetched, self._per_step = Fetched(open_at), per_step
        self.place = (0, 0)

    def state(self) -> dict[str, Any]:
        return {"batches": self.fetched.state_dict(), "place": self.place, "random": random_state.capture()}

    def restore(self, state: dict[str, Any]) -> None:
        self.fetched.load_state_dict(state["batches"])
        self.place = state["place"]
        random_state.restore(state["random"])

    def step(self) -> tuple[dict[str, Any], list[Any]]:
        """Returns the state that the step began from, and all that was seen in it."""
        batches = self.fetched.take(self.place, self._per_step)
        state = self.state()
        self.fetched.begun()
        seen = [self.place, [batch.tolist() for batch in batches], torch.rand(()).item()]
        epoch, first = self.place
        end = first + len(batches)
        self.place = (epoch, end) if end < BATCHES else (epoch + 1, 0)
        return state, seen


def unbroken(open_at: Open, per_step: int) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    torch.manual_seed(1)
    process = Process(open_at, per_step)
    steps = []
    while process.place[0] < EPOCHS:
        steps.append(process.step())
    return [state for state, _ in steps], [seen for _, seen in steps]


@pytest.mark.parametrize("open_at", [in_order, one_ahead, as_it_was_consumed])
@pytest.mark.parametrize("per_step", [1, 3])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_new_process_goes_on_as_its_predecessor(data: st.DataObject, open_at: Open, per_step: int) -> None:
    states, seen = unbroken(open_at, per_step)
    at = data.draw(st.integers(0, len(seen) - 1))
    torch.manual_seed(99)
    process = Process(open_at, per_step)
    for _ in range(data.draw(st.integers(0, 2))):  # its rehearsal
        process.step()
    process.restore(states[at])
    assert [process.step()[1] for _ in range(at, len(seen))] == seen[at:]


@pytest.mark.parametrize("open_at", [in_order, one_ahead, as_it_was_consumed])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_survivor_goes_back_as_often_as_it_must(data: st.DataObject, open_at: Open) -> None:
    states, seen = unbroken(open_at, 2)
    torch.manual_seed(1)
    process, at = Process(open_at, 2), 0
    back = data.draw(st.lists(st.integers(0, len(seen) - 1), max_size=4))
    while at < len(seen):
        assert process.step()[1] == seen[at]
        at += 1
        if at - 1 in back:
            back.remove(at - 1)
            at = max(0, at - data.draw(st.integers(1, 5)))
            process.restore(states[at])


def test_a_loader_that_draws_from_elsewhere_is_named(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def open_at(epoch: int, first: int) -> Iterator[Tensor]:
        nonlocal calls
        for number in range(first, BATCHES):
            calls += 1
            yield torch.tensor([number, calls])

    states, _ = unbroken(open_at, 1)
    process = Process(open_at, 1)
    process.restore(states[4])
    process.step()
    assert "the loader does not give batch 3 of epoch 0 again" in caplog.text


def test_an_epoch_that_ends_early_gives_what_it_has() -> None:
    fetched = Fetched(in_order)
    assert len(fetched.take((0, 0), 5)) == 5
    fetched.begun()
    assert len(fetched.take((0, 5), 5)) == 2
    fetched.begun()
    assert fetched.take((0, 10), 5) == []
