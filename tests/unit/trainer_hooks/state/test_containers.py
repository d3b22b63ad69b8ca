"""Plain values of a script as extras: what is in them comes back, in the objects that the script has names for."""

import random
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.trainer_hooks.state.extras import stateful
from deadpool.trainer_hooks.state.metadata import GAPS, pack_meta, unpack_meta
from deadpool.trainer_hooks.state.storable import decode, encode


@dataclass
class Best:
    loss: float = 1e9
    seen: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    level: int = 0


class Dice(random.Random):
    pass


def saved(extra: Any) -> bytes:
    left_out: list[str] = []
    stored = pack_meta({"extra": encode(stateful({"it": extra})["it"].state_dict(), "extra", left_out), GAPS: []})
    assert left_out == []
    return stored


def restore(extra: Any, stored: bytes) -> None:
    each = stateful({"it": extra})["it"]
    each.load_state_dict(decode(unpack_meta(stored)["extra"], each.state_dict()))


def extras() -> dict[str, tuple[Any, Any]]:
    """Returns values, and what a step changes in each."""
    inner = [1.0, 2.0]

    def best(each: Best) -> None:
        each.loss = 0.5
        each.seen.append(0.5)

    return {
        "dict": ({"n": 1, "inner": inner, "to": (1, 2)}, lambda each: (each["inner"].append(3.0), each.update(n=2, more=1))),
        "counter": (Counter("aab"), lambda each: each.update("b")),
        "defaultdict": (defaultdict(list, {"a": [1]}), lambda each: each["b"].append(2)),
        "ordered": (OrderedDict(a=1, b=2), lambda each: each.move_to_end("a")),
        "list": ([0.1, [1], {"a": torch.ones(2)}], lambda each: (each[1].append(2), each[2]["a"].add_(1), each.append(1))),
        "set": ({1, 2}, lambda each: each.add(3)),
        "deque": (deque([1, 2], maxlen=2), lambda each: each.append(3)),
        "array": (numpy.arange(6.0).reshape(2, 3), lambda each: each.fill(7)),
        "growing array": (numpy.arange(3), lambda each: each.resize(5, refcheck=False)),
        "tensor": (torch.arange(4.0), lambda each: each.add_(1)),
        "growing tensor": (torch.arange(4.0), lambda each: each.resize_(8).fill_(1)),
        "dataclass": (Best(), best),
        "slots": (Slotted(), lambda each: setattr(each, "level", 3)),
        "namespace": (SimpleNamespace(n=1), lambda each: each.__dict__.update(n=2, m=3)),
        "texts": ([Decimal("0.10"), Fraction(1, 3), datetime(2020, 1, 2), range(1, 9, 2)], lambda each: each.clear()),
        "bits": (numpy.random.PCG64(1), lambda each: each.random_raw()),
        "bits that have made others": (numpy.random.PCG64(1), lambda each: each.spawn(1)),
        "generator that has made others": (numpy.random.default_rng(1), lambda each: each.spawn(2)),
        "no new keys": (defaultdict(list, {"a": [1]}), lambda each: setattr(each, "default_factory", None)),
        "subclass": (Dice(1), lambda each: each.random()),
    }


@pytest.mark.parametrize("kind", extras())
def test_it_comes_back_as_it_was(kind: str) -> None:
    extra, change = extras()[kind]
    before = saved(extra)
    change(extra)
    assert saved(extra) != before
    restore(extra, before)
    assert saved(extra) == before
    fresh, _ = extras()[kind]
    restore(fresh, before)  # another process
    assert saved(fresh) == before


def test_what_the_script_has_names_for_stays_the_same_object() -> None:
    losses, weights, stats = [0.5], torch.ones(2), Best()
    extra: dict[str, Any] = {"losses": losses, "weights": weights, "rows": [losses, {"w": weights}]}
    before, of_stats = saved(extra), saved(stats)
    seen = stats.seen
    losses.append(0.4)
    weights.zero_()
    seen.append(1.0)
    restore(extra, before)
    restore(stats, of_stats)
    assert extra["losses"] is losses
    assert losses == [0.5]
    assert extra["weights"] is weights
    assert weights.tolist() == [1, 1]
    assert extra["rows"][1]["w"] is weights
    assert stats.seen is seen
    assert seen == []


def test_what_was_one_object_is_one_again_and_what_was_two_is_two() -> None:
    weights, once, twice = torch.ones(1), [1.0], [2.0]
    apart = saved({"rows": [[1.0], [2.0]], "last": torch.ones(1), "best": torch.zeros(1)})
    together = saved({"rows": [once, once, twice], "last": weights, "best": weights})
    start = torch.full((1,), 5.0)
    live: dict[str, Any] = {"rows": [once] * 2, "last": start, "best": start}
    restore(live, apart)
    assert live == {"rows": [[1.0], [2.0]], "last": torch.ones(1), "best": torch.zeros(1)}
    assert live["rows"][0] is once
    restore(live, together)
    assert live == {"rows": [[1.0], [1.0], [2.0]], "last": torch.ones(1), "best": torch.ones(1)}
    assert live["rows"][0] is live["rows"][1] is once
    assert live["last"] is live["best"] is start


@pytest.mark.parametrize("spawned", [0, 2, 5])
def test_what_a_generator_makes_next_is_what_it_would_have_made(spawned: int) -> None:
    def generator(children: int) -> numpy.random.Generator:
        made = numpy.random.default_rng([3, 4]).spawn(1)[0]
        made.spawn(children)
        return made

    live = generator(2)
    restore(live, saved(generator(spawned)))
    assert live.spawn(1)[0].random() == generator(spawned).spawn(1)[0].random()


def test_a_factory_that_is_code_is_that_of_the_value_in_its_place() -> None:
    def new() -> dict[str, Any]:
        return {"n": defaultdict(lambda: 7, {"a": 1})}

    extra = {**new(), "later": [defaultdict(lambda: 7)]}
    stored = saved(extra)
    live = new()
    restore(live, stored)
    assert live["n"]["b"] == 7
    with pytest.raises(SnapshotError, match="lost its factory"):
        live["later"][0]["b"]
    extra["n"].default_factory = None
    restore(live, saved(extra))
    assert live["n"].default_factory is None


def test_an_array_of_another_type_is_not_rounded_to_that_which_is_there() -> None:
    live: dict[str, Any] = {"sum": numpy.zeros(1, numpy.float32)}
    restore(live, saved({"sum": numpy.full(1, 0.1)}))
    assert live["sum"].tolist() == [0.1]


@pytest.mark.parametrize(("removed", "faithful"), [(0, True), (92, False)])
def test_a_set_whose_order_does_not_come_back_is_named(removed: int, faithful: bool) -> None:
    """[92, 100) in the places of a large table, and in those of a small one, where 96 is before 92."""
    pool = set(range(100))
    for _ in range(removed):
        pool.pop()
    with nullcontext() if faithful else pytest.warns(RuntimeWarning, match=r"extra/value: a set comes back .* another order"):
        before = saved(pool)
    order = [*pool]
    pool.clear()
    restore(pool, before)
    assert (order == [*pool]) is faithful
    assert sorted(order) == sorted(pool)


def test_what_can_be_none_is_refused_with_what_can() -> None:
    values: list[Any] = [lambda: 0, iter([1]), 5, (1, 2), "text"]
    for value in values:
        with pytest.raises(
            ConfigError, match=r"'it': .*has no state_dict\(\).*a dict, list, set, deque, array, tensor or dataclass"
        ):
            stateful({"it": value})
