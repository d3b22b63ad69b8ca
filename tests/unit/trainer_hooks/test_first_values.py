"""What a joiner leaves out of its first values changes no random number, and nothing that the restore does not overwrite."""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deadpool.trainer_hooks.first_values import FirstValues
from deadpool.trainer_hooks.generator_jump import WORDS, advance
from deadpool.trainer_hooks.torch_internals import TorchDispatchMode

SIDE = 256


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    before = torch.get_rng_state()
    torch.manual_seed(7)
    yield
    torch.set_rng_state(before)


@contextmanager
def watched(*, left_out: bool) -> Iterator[FirstValues]:
    values = FirstValues(SIDE * SIDE)
    values.begin(left_out=left_out)
    try:
        yield values
    finally:
        values.end()


@pytest.mark.parametrize("numbers", [0, 1, WORDS, 2 * WORDS, 2 * WORDS + 1, 300_000, 1_300_011])
@pytest.mark.parametrize("drawn", [0, 1, 623, 1000])
def test_a_generator_comes_to_where_drawing_brings_it(drawn: int, numbers: int) -> None:
    one, other = torch.Generator().manual_seed(numbers), torch.Generator().manual_seed(numbers)
    for each in (one, other):
        torch.empty(drawn).uniform_(generator=each)
        torch.empty(1).normal_(generator=each)  # it keeps a second number for later
    advance(one, numbers)
    torch.empty(numbers).uniform_(generator=other)
    assert one.get_state().equal(other.get_state())


def plain(weight: Tensor) -> None:
    pass


def from_its_own(weight: Tensor) -> None:
    generator = torch.Generator().manual_seed(3)
    nn.init.normal_(weight, generator=generator)
    nn.init.constant_(weight[0], torch.rand((), generator=generator).item())


FILLS: dict[str, Callable[[Tensor], Any]] = {
    "plain": plain,
    "normal": lambda weight: nn.init.normal_(weight, std=0.02),
    "truncated": lambda weight: nn.init.trunc_normal_(weight, std=0.02),
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_normal_,
    "orthogonal": lambda weight: nn.init.orthogonal_(weight[:64]),
    "own generator": from_its_own,
    "transposed": lambda weight: nn.init.normal_(weight.t()),
}


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.large = nn.Linear(SIDE, SIDE + 5, dtype=dtype)
        self.small = nn.Linear(8, 8)
        self.table = nn.Embedding(SIDE, SIDE + 16, dtype=dtype)


TYPES = (torch.float32, torch.bfloat16, torch.float64)
CASES = [(fill, dtype) for fill in FILLS for dtype in TYPES if (fill, dtype) != ("orthogonal", torch.bfloat16)]  # as torch has it


@pytest.mark.parametrize(("fill", "dtype"), CASES, ids=str)
def test_what_is_drawn_after_it_is_the_same(fill: str, dtype: torch.dtype) -> None:
    def build() -> Model:
        model = Model(dtype)
        FILLS[fill](model.large.weight)
        return model

    whole = build()
    after = torch.get_rng_state()
    torch.manual_seed(7)
    with watched(left_out=True) as values:
        model = build()
        assert torch.get_rng_state().equal(after)
        assert not values.kept_elsewhere(model.parameters())
    assert all(each.isfinite().all() for each in model.parameters())
    assert not model.table.weight.equal(whole.table.weight)  # it was left out
    assert model.small.weight.equal(whole.small.weight)
    assert fill != "truncated" or model.large.weight.equal(whole.large.weight)
    torch.manual_seed(7)
    with watched(left_out=False):
        assert all(map(torch.equal, build().parameters(), whole.parameters()))


@pytest.mark.parametrize("left_out", [False, True])
def test_nothing_else_may_come_of_first_values(left_out: bool) -> None:
    def wrong(script: Callable[[nn.Linear], Any]) -> str:
        with watched(left_out=left_out) as values:
            model = nn.Linear(SIDE, SIDE)
            kept = script(model)
            protected = [*model.parameters(), *model.buffers(), *(kept if isinstance(kept, list) else [])]
            return values.kept_elsewhere(protected, let_go_s=0.0)

    def registered(model: nn.Linear) -> None:
        model.register_buffer("average", model.weight.detach().clone())

    assert "a tensor of shape (256, 256) was made from them and is not in protect()" in wrong(copy.deepcopy)
    assert "shape (256,)" in wrong(lambda model: model.weight.detach().norm(dim=0) * 2)
    assert "a number was read from them" in wrong(lambda model: model.weight.std().item())
    assert wrong(lambda model: into(torch.zeros(4), model.weight[0, :4]))
    assert not wrong(lambda model: copy.deepcopy(model) and None)  # nobody keeps it
    assert not wrong(lambda model: [copy.deepcopy(model).weight])  # protected too
    assert not wrong(registered)
    assert not wrong(lambda model: (torch.zeros_like(model.weight), model.weight.new_ones(3)))
    assert not wrong(lambda model: model.to(torch.float64))


def test_what_a_thread_of_torch_lets_go_a_moment_later_is_not_kept() -> None:
    with watched(left_out=False) as values:
        model = nn.Linear(SIDE, SIDE)
        held = [copy.deepcopy(model)]
        thread = threading.Timer(0.2, held.clear)
        thread.start()
        assert not values.kept_elsewhere(model.parameters())
        thread.join()


def into(target: Tensor, source: Tensor) -> Tensor:
    torch._foreach_copy_([target], [source.detach()])
    return target


def test_what_is_small_or_no_parameter_is_filled() -> None:
    def build() -> Iterable[Tensor]:
        yield nn.Linear(SIDE, SIDE // 2).weight
        yield torch.empty(SIDE, SIDE).normal_()
        yield nn.Linear(SIDE, SIDE).weight.data.normal_()

    whole = list(build())
    torch.manual_seed(7)
    with watched(left_out=True) as values:
        built = list(build())
        assert not values.kept_elsewhere(built)
    assert all(map(torch.equal, built, whole))


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return function(*args, **(kwargs or {}))


def test_a_mode_that_the_script_has_entered_meanwhile_stays() -> None:
    values = FirstValues(SIDE * SIDE)
    values.begin(left_out=True)
    with Counted() as counted:  # type: ignore[no-untyped-call]
        values.end()
        torch.manual_seed(7)
        first = nn.Linear(SIDE, SIDE).weight
        assert counted.seen
    values.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    torch.manual_seed(7)
    assert nn.Linear(SIDE, SIDE).weight.equal(first)
