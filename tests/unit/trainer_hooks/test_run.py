"""What protect() refuses, and the public names."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

import deadpool
from deadpool.trainer_hooks.run import Run


@pytest.fixture
def run() -> Iterator[Run]:
    """Of a process that is alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield Run(session=None)
    dist.destroy_process_group()


def test_the_public_names_are_there() -> None:
    assert {name for name in deadpool.__all__ if getattr(deadpool, name) is not None} == set(deadpool.__all__)
    assert issubclass(deadpool.ConfigError, deadpool.DeadpoolError)


def test_main_calls_the_training_and_gives_back_what_it_returns_or_raises() -> None:
    assert deadpool.main(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        deadpool.main(lambda: 1 / 0)


def test_a_second_protect_is_refused(run: Run) -> None:
    model = nn.Linear(2, 2)
    guard: deadpool.Guard = run.protect(model=model, optimizer=torch.optim.SGD(model.parameters()))
    assert [value for _, value in guard.run(lambda step: step * step, until=3)] == [0, 1, 4]
    with pytest.raises(deadpool.ConfigError, match="was called before: one guard"):
        run.protect(model=model, optimizer=torch.optim.SGD(model.parameters()))


def test_a_script_that_initializes_torch_distributed_itself_is_told_what_to_leave_out(run: Run) -> None:
    with pytest.raises(deadpool.ConfigError, match=r"join\(\) stands for init_process_group\(\)"):
        deadpool.join()


@pytest.mark.parametrize(
    ("model", "optimizer", "line"),
    [
        (nn.Linear(2, 2), None, "optimizer is NoneType, which has no step(); optimizer={}"),
        (nn.Linear(2, 2), {"adam": []}, "adam is list, which has no step()"),
        (None, {}, "model is NoneType, and no torch.nn.Module"),
    ],
)
def test_what_is_no_model_or_optimizer_is_named(run: Run, model: Any, optimizer: Any, line: str) -> None:
    with pytest.raises(deadpool.ConfigError, match=re.escape(line)):
        run.protect(model=model, optimizer=optimizer)


def test_a_run_that_is_not_protected_says_so(run: Run) -> None:
    model = nn.Linear(2, 2)
    described = run.protect(model=model, optimizer=torch.optim.SGD(model.parameters())).describe()
    assert not described.protected
    assert "not protected" in str(described)


def test_outside_a_job_loops_follow_each_other_as_well(run: Run) -> None:
    model = nn.Linear(2, 2)
    guard: deadpool.Guard = run.protect(model=model, optimizer=torch.optim.SGD(model.parameters()))
    assert [step for step, _ in guard.run(lambda step: step, until=3)] == [0, 1, 2]
    guard.begin(start=3, until=5)
    while guard.next_step < 5:
        with guard.step():
            pass
    assert guard.finish()
    assert not guard.catching_up
    for step, _ in guard.run(lambda step: step, until=9):
        assert step == 5
        break
    with pytest.raises(deadpool.ConfigError, match="the loop of steps 5 to 9 was left before its end"):
        guard.begin(until=12)


def test_a_model_without_memory_is_refused(run: Run) -> None:
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(deadpool.ConfigError, match=r"model\.weight is on the meta device"):
        run.protect(model=model, optimizer=torch.optim.SGD(model.parameters()))
