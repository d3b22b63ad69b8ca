"""Digests of states and values, and what is found beside the state."""

import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from deadpool.trainer_hooks.drill.digests import digest, leaves
from deadpool.trainer_hooks.drill.loose import loose_of

_global_generator = random.Random(1)


@dataclass(frozen=True)
class Losses:
    train: float
    held_out: float | None


def test_every_leaf_has_its_path() -> None:
    value = {"a": [1, Losses(0.5, None)], "b": {"c": torch.tensor(2)}}
    assert dict(leaves(value)) == {"a[0]": "1", "a[1].train": "0.5", "a[1].held_out": "None", "b.c": "int64 2"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0])),
        (torch.ones(2), torch.ones(2, dtype=torch.bfloat16)),
        (torch.ones(4), torch.ones(2, 2)),
        (list(range(100)), [*range(99), 0]),
        (numpy.float32(1), numpy.float64(1)),
    ],
)
def test_values_that_are_not_the_same_to_the_bit_have_other_digests(one: object, other: object) -> None:
    assert digest(one) != digest(other)


def test_the_same_value_has_the_same_digest() -> None:
    assert digest(torch.arange(6).view(2, 3).T) == digest(torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert digest(float("nan")) == digest(float("nan"))


def test_what_the_step_reaches_and_what_modules_keep_for_themselves_is_found() -> None:
    source, counts, net = torch.Generator(), {"seen": 3}, nn.Linear(2, 2)
    net.calls = 7  # type: ignore[assignment]

    class Loader:
        def __init__(self) -> None:
            self.position = 4
            self.draws = numpy.random.default_rng(0)

    loader = Loader()

    def batch() -> tuple[object, ...]:
        return source, _global_generator

    def train_step(step: int, factor: float = 1.0) -> tuple[object, ...]:
        return batch(), counts, loader

    class Sgd(torch.optim.SGD):
        taken = 0

    optimizer = Sgd(net.parameters(), lr=0.1)
    optimizer.taken = 5
    found = loose_of({"model": net}, {"optimizer": optimizer}, functools.partial(train_step, factor=2.0))
    assert found["attribute calls of module model"] == 7
    assert found["attribute taken of optimizer"] == 5
    assert found["variable counts"] == {"seen": 3}
    assert found["variable loader.position"] == 4
    assert {name for name in found if name.startswith("random generator")} == {
        "random generator source", "random generator _global_generator", "random generator loader.draws",
    }  # fmt: skip
    before = dict(leaves(found))
    source.manual_seed(5)
    assert dict(leaves(loose_of({"model": net}, {"optimizer": optimizer}, train_step))) != before


def test_a_bound_step_reaches_its_own_object() -> None:
    class Script:
        def __init__(self) -> None:
            self.seen = 1

        def step(self, step: int) -> None: ...

    assert loose_of({}, {}, Script().step)["variable self.seen"] == 1
    assert loose_of({}, {}, None) == {}


def test_what_functions_that_torch_keeps_for_the_script_use_is_found() -> None:
    calls, seen, taken = [0], [1], {"steps": 2}
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def rate(epoch: int) -> float:
        calls[0] += 1
        return 1.0 / calls[0]

    schedulers = {"warm-up": torch.optim.lr_scheduler.LambdaLR(optimizer, rate)}
    net.register_forward_hook(lambda module, args, output: seen.append(1))
    optimizer.register_step_post_hook(lambda *args: taken.update(steps=taken["steps"] + 1))

    def train_step(step: int) -> None:
        for each in schedulers.values():
            each.step()

    found = loose_of({"model": net}, {"optimizer": optimizer}, train_step)
    assert (found["variable calls"], found["variable seen"], found["variable taken"]) == ([1], [1], {"steps": 2})


def test_tensors_that_are_carried_from_step_to_step_are_found() -> None:
    class Recurrent(nn.Module):
        hidden: object = None

    net, memory = Recurrent(), {"newest": [torch.ones(2), None]}
    net.hidden = (torch.zeros(2), torch.ones(2))

    def train_step(step: int) -> object:
        return memory

    before = dict(leaves(loose_of({"model": net}, {}, train_step)))
    net.hidden[0].add_(1)
    memory["newest"][0].add_(1)  # type: ignore[union-attr]
    after = dict(leaves(loose_of({"model": net}, {}, train_step)))
    assert {name for name in before if before[name] != after[name]} == {
        "attribute hidden of module model[0]", "variable memory.newest[0]",
    }  # fmt: skip


loss = 0.0  # as of a loop at the script's top level


def test_a_global_that_is_only_named_as_an_attribute_is_none_that_the_step_uses() -> None:
    def train_step(step: int) -> object:
        def closure(found: object) -> object:
            return found.loss, _global_generator  # type: ignore[attr-defined]

        return closure

    assert loose_of({}, {}, train_step).keys() == {"random generator _global_generator"}


def test_an_iterator_that_the_step_reaches_is_told_by_how_far_it_is() -> None:
    loader: DataLoader[int] = DataLoader([1, 2, 3, 4])  # type: ignore[arg-type]

    def forever() -> Iterator[object]:
        while True:
            yield from iter(loader)

    def one_by_one() -> Iterator[object]:
        for batch in loader:
            yield [batch]

    def count() -> Iterator[int]:
        number = 0
        while True:
            number += 1
            yield number

    batches, numbers, values, endless, single = iter(loader), count(), iter([1, 2, 3]), forever(), one_by_one()

    def train_step(step: int) -> None:
        for each in (batches, numbers, values, endless, single):
            next(each)

    before = dict(leaves(loose_of({}, {}, train_step)))
    assert loose_of({}, {}, train_step).keys() == {
        f"iterator {name}" for name in ("batches", "numbers", "values", "endless", "single")
    }
    train_step(0)
    assert "iterator batches" in before
    once = dict(leaves(loose_of({}, {}, train_step)))
    train_step(1)
    twice = dict(leaves(loose_of({}, {}, train_step)))
    for name in ("batches", "numbers", "values", "endless", "single"):
        seen = [[(key, value) for key, value in each.items() if name in key] for each in (before, once, twice)]
        assert all(one != other for one, other in itertools.combinations(seen, 2)), name
