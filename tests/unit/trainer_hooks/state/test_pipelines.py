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


def test_the_mode_of_a_step_that_was_discarded_is_forgotten() -> None:
    schedule = schedule_of(static=True)
    assert pipelines.conditions() == [[False, False]]
    schedule.step(BATCH, target=BATCH)
    trained = pipelines.conditions()
    with torch.no_grad():
        schedule.eval(BATCH, target=BATCH)
    evaluated = pipelines.conditions()
    assert (trained, evaluated) == ([[True, True]], [[True, False]])
    for saved in (trained, evaluated, trained, [[False, False]]):
        pipelines.restore(saved)
        assert pipelines.conditions() == saved
        schedule.step(BATCH, target=BATCH)


def test_where_shapes_were_found_out_by_trying_the_schedule_is_left_as_it_is() -> None:
    schedule = schedule_of(static=False)
    schedule.step(BATCH, target=BATCH)
    pipelines.restore([[True, False]])
    assert pipelines.conditions() == [[True, True]]


def test_another_number_of_schedules_is_another_script() -> None:
    schedule = schedule_of(static=True)
    pipelines.restore([[False, False]] * 2)
    schedule.step(BATCH, target=BATCH)
    pipelines.restore([[False, False]] * 2)
    assert pipelines.conditions() == [[True, True]]
