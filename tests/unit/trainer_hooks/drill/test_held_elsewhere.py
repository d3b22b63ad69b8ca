"""What is found where no name that a step reads leads to: in iterators, bound methods, defaults, classes, others' objects."""

import functools
import io
import itertools
import multiprocessing
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from deadpool.trainer_hooks.drill.loose import loose_of


@dataclass
class Progress:
    inner: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(seen=0))


class Dice(random.Random):
    thrown = 0


class Batches:
    """An iterator of the script's own."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.position += 1
        return self.position

    def rows(self) -> Iterator[int]:
        while True:
            self.position += 1
            yield 1


class Rows(list[int]):
    position = 0


class Registry:
    names: list[str] = []  # noqa: RUF012 - the habit


class Registered(Registry):
    pass


class Once(type):
    made: dict[type, int] = {}  # noqa: RUF012 - the habit

    def __call__(cls, *args: object) -> object:
        cls.made[cls] = cls.made.get(cls, 0) + 1
        return super().__call__(*args)


class Settings(metaclass=Once):
    class Inner:
        level = 0


class Steps(nn.Module):
    calls: list[int] = []  # noqa: RUF012 - the habit


def counted(function: Callable[[], object]) -> Callable[[], object]:
    calls = [0]

    def call() -> object:
        calls[0] += 1
        return function()

    return call


def told_of_it(progress: Progress) -> Callable[[int], None]:
    def tell(_: int) -> None:
        progress.inner.seen += 1

    return tell


def held_elsewhere() -> dict[str, tuple[Callable[[], object], str]]:
    """Returns step functions, and the name of what a call of each changes."""
    batches, rows, registered, steps = Batches(), Rows([1]), Registered(), Steps()
    over, losses, told, dice, text = Batches(), list[float](), Progress(), Dice(1), io.BytesIO()
    numbers, shared, long, objects = array("d", [0.0]), multiprocessing.Value("i", 0), dict.fromkeys(range(20_000), 0), Progress()
    generator, push, first, second = over.rows(), losses.append, counted(int), counted(str)
    boxes = numpy.array([objects, None], dtype=object)
    mapped = map(told_of_it(told), itertools.repeat(0))
    draws = numpy.random.default_rng(1)

    def given(progress: Progress) -> None:
        progress.inner.seen += 1

    def default(progress: Progress = Progress()) -> None:  # noqa: B008 - the habit
        progress.inner.seen += 1

    def position() -> None:
        rows.position += 1

    def thrown() -> None:
        dice.thrown += 1

    def filled() -> None:
        numbers[0] += 1

    def seen_by_all() -> None:
        shared.value += 1

    def one_of_many() -> None:
        long[7] += 1

    def inner() -> None:
        Settings.Inner.level += 1

    def by_text() -> None:
        globals()["reached_by_text"] = globals()["reached_by_text"] + 1

    return {
        "an iterator of its own": (lambda: next(batches), "variable batches.position"),
        "a generator's object": (lambda: next(generator), "iterator generator, variable generator.self.position"),
        "a map's function": (lambda: next(mapped), "variable progress.inner.seen"),
        "an argument of a partial": (functools.partial(given, Progress()), "variable progress.inner.seen"),
        "an object as default": (default, "variable progress (a default of default).inner.seen"),
        "a subclass of list": (position, "variable rows.position"),
        "a base class": (lambda: registered.names.append("a"), "variable Registry.names"),
        "a metaclass": (lambda: Settings(), "variable Once.made"),
        "a class in a class": (inner, "variable Settings.Inner.level"),
        "a class of the model": (lambda: steps.calls.append(1), "variable Steps.calls"),
        "a bound method of a list": (lambda: push(1.0), "variable push"),
        "a subclass of a generator": (thrown, "variable dice.thrown"),
        "bytes in memory": (lambda: text.write(b"1"), "variable text"),
        "an array of python's": (filled, "variable numbers"),
        "a shared value": (seen_by_all, "variable shared"),
        "one of many entries": (one_of_many, "variable long"),
        "an array of objects": (lambda: vars(boxes[0].inner).update(seen=1), "variable boxes[0].inner.seen"),
        "two of the same name": (lambda: (second(), first.__name__), "variable calls"),
        "what numpy spawns": (lambda: draws.bit_generator.seed_seq.spawn(1), "random generator draws"),  # type: ignore[attr-defined]
        "a global by its text": (by_text, "variable reached_by_text"),
        "a mark on a library": (mark, "variable torch.marked_by_script"),
    }


reached_by_text = 0
torch.marked_by_script = 0  # type: ignore[attr-defined]


def mark() -> None:
    torch.marked_by_script += 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("habit", held_elsewhere())
def test_what_is_held_where_no_name_of_the_step_leads_to_is_found(habit: str) -> None:
    step, changed = held_elsewhere()[habit]
    model = Steps()
    before = loose_of({"model": model}, {}, step)
    step()
    after = loose_of({"model": model}, {}, step)
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert ", ".join(sorted(name.removesuffix(" (2)") for name in names)) == changed


def test_what_a_script_attaches_to_a_parameter_is_found() -> None:
    layer, average = nn.Linear(1, 1), torch.zeros(1)
    layer.weight.average = average  # type: ignore[attr-defined]
    before = loose_of({"model": layer}, {}, None)
    average.add_(1)
    after = loose_of({"model": layer}, {}, None)
    assert {name for name in after if before[name] != after[name]} == {"attribute weight.average of module model"}


def test_a_generator_of_the_system_is_one_that_never_answers_alike() -> None:
    source = random.SystemRandom()
    assert "call of source (a random.SystemRandom)" in loose_of({}, {}, lambda: source.random())
