"""What is found beside the state: the names that a step reaches, and what stands for their values."""

import contextvars
import enum
import functools
import heapq
import itertools
import os
import random
import re
import secrets
import sqlite3
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from deadpool.trainer_hooks.drill.digests import digest
from deadpool.trainer_hooks.drill.loose import loose_of
from deadpool.trainer_hooks.drill.reached import script_frames

_global_generator = random.Random(1)


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
    assert found["attribute calls of module model"] == "7"
    assert found["attribute taken of optimizer"] == "5"
    assert found["variable counts"] == digest("'seen': 3")
    assert found["variable loader.position"] == "4"
    assert {name for name in found if name.startswith("random generator")} == {
        "random generator source", "random generator _global_generator", "random generator loader.draws",
    }  # fmt: skip
    before = found
    source.manual_seed(5)
    assert loose_of({"model": net}, {"optimizer": optimizer}, train_step) != before


def test_a_bound_step_reaches_its_own_object() -> None:
    class Script:
        def __init__(self) -> None:
            self.seen = 1

        def step(self, step: int) -> None: ...

    assert loose_of({}, {}, Script().step)["variable self.seen"] == "1"
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
    assert {"variable calls", "variable seen", "variable taken"} <= found.keys()


def test_tensors_that_are_carried_from_step_to_step_are_found() -> None:
    class Recurrent(nn.Module):
        hidden: object = None

    net, memory = Recurrent(), {"newest": [torch.ones(2), None]}
    net.hidden = (torch.zeros(2), torch.ones(2))

    def train_step(step: int) -> object:
        return memory

    before = loose_of({"model": net}, {}, train_step)
    net.hidden[0].add_(1)
    memory["newest"][0].add_(1)  # type: ignore[union-attr]
    after = loose_of({"model": net}, {}, train_step)
    assert {name for name in before if before[name] != after[name]} == {
        "attribute hidden[0] of module model", "variable memory['newest'][0]",
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

    before = loose_of({}, {}, train_step)
    assert {name for name in loose_of({}, {}, train_step) if name.startswith("iterator ")} == {
        f"iterator {name}" for name in ("batches", "numbers", "values", "endless", "single")
    }
    train_step(0)
    assert "iterator batches" in before
    once = loose_of({}, {}, train_step)
    train_step(1)
    twice = loose_of({}, {}, train_step)
    for name in ("batches", "numbers", "values", "endless", "single"):
        seen = [[(key, value) for key, value in each.items() if name in key] for each in (before, once, twice)]
        assert all(one != other for one, other in itertools.combinations(seen, 2)), name


class Phase(enum.Enum):
    WARM = 1
    FULL = 2


@dataclass
class Progress:
    inner: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(seen=0))


class Slotted:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0


class Meter:
    values: list[float] = []  # noqa: RUF012 - the habit

    def __init__(self) -> None:
        self._hidden = 0

    def __call__(self) -> None:
        self._hidden += 1

    @classmethod
    def add(cls) -> None:
        cls.values.append(1.0)


class Dice(random.Random):
    thrown = 0


class Rows(list[int]):
    position = 0


phase, total = Phase.WARM, Decimal(0)
level = contextvars.ContextVar("level", default=0)
steps_taken = {"n": 0}


def rebinds() -> None:
    global phase, total
    phase, total = Phase.FULL if phase is Phase.WARM else phase, total + 1


def habits() -> dict[str, tuple[Callable[[], object], set[str]]]:
    """Returns step functions with a habit each, and what a call of each changes, by its name."""
    progress, slotted, meter, dice, arms = Progress(), Slotted(), Meter(), Dice(1), {"left": Progress()}
    recent, heap, seen, visits = (
        deque[float](maxlen=3),
        [(0.5, torch.ones(1))],
        Counter[str](),
        weakref.WeakKeyDictionary[nn.Module, int](),
    )
    buffer, seeds, bits, ticks = numpy.zeros((8, 2)), numpy.random.SeedSequence(1), numpy.random.PCG64(1), itertools.count()
    wheel, local, layer, rows = itertools.cycle([1, 2, 3]), threading.local(), nn.Linear(1, 1), map(str, range(5))
    other_model, other_optimizer = nn.Linear(2, 2), torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    local.n = 0

    @functools.lru_cache
    def noise(key: float) -> float:
        return key

    def with_default(kept: list[int] = []) -> None:  # noqa: B006 - the habit
        kept.append(1)

    def called() -> None:
        called.times = getattr(called, "times", 0) + 1  # type: ignore[attr-defined]

    def object_in_object() -> None:
        progress.inner.seen += 1

    def slots() -> None:
        slotted.seen += 1

    def object_in_dict() -> None:
        arms["left"].inner.seen += 1

    def in_place() -> None:
        other_model.weight.data.add_(1)

    def rate() -> None:
        other_optimizer.param_groups[0]["lr"] *= 2

    def environment() -> None:
        os.environ["DRILLED_HABIT"] = os.environ.get("DRILLED_HABIT", "") + "1"

    def growth() -> None:
        scaler.load_state_dict({**scaler.state_dict(), "growth_interval": scaler.get_growth_interval() + 1})

    changes: dict[Callable[[], object], set[str]] = {
        rebinds: {"variable phase", "variable total"},
        object_in_object: {"variable progress.inner.seen"},
        slots: {"variable slotted.seen"},
        object_in_dict: {"variable arms['left'].inner.seen"},
        (lambda: meter()): {"variable meter._hidden"},
        (lambda: Meter.add()): {"variable Meter.values"},
        (lambda: dice.random()): {"random generator dice"},
        (lambda: recent.append(1.0)): {"variable recent"},
        (lambda: heapq.heappush(heap, (0.7, torch.ones(1)))): {
            f"variable heap[{row}][{part}]" for row in (1, 2) for part in (0, 1)
        },
        (lambda: seen.update("a")): {"variable seen"},
        (lambda: visits.update({layer: 2})): {"variable visits"},
        (lambda: buffer.put(3, 5.0)): {"variable buffer"},
        (lambda: seeds.spawn(1)): {"random generator seeds"},
        (lambda: bits.random_raw()): {"random generator bits"},
        (lambda: next(ticks)): {"iterator ticks"},
        (lambda: next(wheel)): {"iterator wheel"},
        (lambda: next(rows)): {"iterator rows"},
        (lambda: vars(local).update(n=local.n + 1)): {"variable local.n"},
        (lambda: level.set(level.get() + 1)): {"variable level"},
        (lambda: noise(random.random())): {"variable noise", "call of noise(), which keeps its answers"},
        (lambda: steps_taken.update(n=steps_taken["n"] + 1)): {"variable steps_taken"},
        with_default: {"variable kept (a default of with_default)"},
        called: {"variable called.times"},
        in_place: {"unprotected model other_model.weight"},
        rate: {"unprotected optimizer other_optimizer.param_groups[0]"},
        environment: {"variable os.environ['DRILLED_HABIT']"},
        growth: {"variable scaler._growth_interval"},
    }
    return {f"{index}": row for index, row in enumerate(changes.items())}


@pytest.mark.parametrize("habit", habits())
def test_what_a_step_changes_beside_the_state_is_found_under_its_name(habit: str) -> None:
    step, changed = habits()[habit]
    before = loose_of({}, {}, step)
    step()
    step()  # a wheel's first round is kept as it goes
    after = loose_of({}, {}, step)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == changed


def test_what_never_answers_alike_is_named() -> None:
    def train_step(step: int) -> object:
        return time.time(), secrets.randbelow(3), hash("text")

    once, again = loose_of({}, {}, train_step), loose_of({}, {}, train_step)
    assert {name for name in once if once[name] != again[name]} == {
        "call of time.time()", "call of secrets.randbelow()", "call of hash()",
    }  # fmt: skip


def test_what_cannot_be_looked_into_is_named() -> None:
    database, lock, text = sqlite3.connect(":memory:"), threading.Lock(), re.compile("a")

    def train_step(step: int) -> object:
        return database, lock, text, object()

    found = loose_of({}, {}, train_step)
    database.close()
    assert found.keys() == {"content of database (a sqlite3.Connection)"}


def frame_of_a_loop() -> dict[str, str]:
    """Returns what is found of this frame at the boundary between two rounds."""
    best, history, duration, early, looked = 1e9, list[float](), 0.0, 0, dict[str, str]()

    def guarded(steps: int) -> Iterator[int]:
        for number in range(steps):
            yield number
            frame = sys._getframe().f_back
            looked.update(loose_of({}, {}, None, frames=list(script_frames(frame))[:1]))

    for number in guarded(2):
        loss = 10.0 - number
        duration = loss * 2
        history.append(duration)
        if loss < best:
            best = loss
        if early:
            break
    return looked | {"the best": str(best)}


def test_of_a_frame_only_what_its_next_round_reads_before_it_writes_it_is_looked_at() -> None:
    names = {"variable best", "variable history", "variable early"}
    assert names <= frame_of_a_loop().keys()
    assert {"variable loss", "variable duration", "variable number"}.isdisjoint(frame_of_a_loop())


def test_methods_of_models_and_objects_are_looked_into() -> None:
    class Net(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch * steps_taken["n"]

    assert "variable steps_taken" in loose_of({"model": Net()}, {}, None)


def test_what_a_loader_keeps_in_its_dataset_and_collate_function_is_found() -> None:
    class Rows(list[int]):
        pass

    class Collate:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, rows: object) -> object:
            self.calls += 1
            return rows

    loader: DataLoader[int] = DataLoader(Rows([1, 2]), collate_fn=Collate())  # type: ignore[arg-type]
    assert loose_of({}, {}, None, loader=loader)["variable loader.collate_fn.calls"] == "0"
