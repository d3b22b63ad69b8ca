"""A pipeline's schedule goes back to the mode that it was in."""

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import mse_loss

from deadpool.trainer_hooks.state import pipelines

BATCH = torch.ones(4, 3)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()  # a schedule of one test is none of the next one's


def schedule_of(*, static: bool) -> Schedule1F1B:
    part = torch.ones(2, 3, requires_grad=True)
    shapes = {"input_args": part, "output_args": part} if static else {}
    stage = PipelineStage(nn.Linear(3, 3), 0, 1, torch.device("cpu"), **shapes, group=dist.group.WORLD)  # type: ignore[arg-type]
    return Schedule1F1B(stage, 2, loss_fn=mse_loss)


@pytest.mark.parametrize("static", [True, False], ids=["shapes given", "shapes found out"])
def test_after_a_restore_a_schedule_prepares_itself_once_more(static: bool) -> None:
    """What is said of it meanwhile is what it was."""
    schedule = schedule_of(static=static)
    assert pipelines.conditions() == [[False, False]]
    schedule.step(BATCH, target=BATCH)
    trained = pipelines.conditions()
    with torch.no_grad():
        schedule.eval(BATCH, target=BATCH)
    evaluated = pipelines.conditions()
    assert (trained, evaluated) == ([[True, True]], [[True, False]])
    for saved in (trained, evaluated, [[False, False]]):
        pipelines.restore(saved)
        assert not schedule._stage_forward_initialized
        assert not schedule._stage_backward_initialized
        assert pipelines.conditions() == saved
        schedule.step(BATCH, target=BATCH)
        assert pipelines.conditions() == trained


def test_the_losses_of_a_step_that_was_left_in_the_middle_are_not_the_next_ones() -> None:
    schedule = schedule_of(static=True)
    stage = schedule._stage.submod
    saved = pipelines.conditions()
    leave = stage.register_forward_hook(lambda *_: 1 / 0 if schedule._internal_losses else None)
    with pytest.raises(RuntimeError, match="failed to run forward"):
        schedule.step(torch.zeros(4, 3), target=BATCH)
    leave.remove()
    pipelines.restore(saved)
    schedule.step(BATCH, target=BATCH)
    assert isinstance(stage.weight.grad, torch.Tensor)
    found = stage.weight.grad.clone()
    stage.zero_grad()
    torch.autograd.backward(mse_loss(stage(BATCH), BATCH))
    torch.testing.assert_close(found, stage.weight.grad)
