"""All kinds of small trainings: `KINDS`. Here are those whose steps, random numbers or shards have habits of their own."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy
import torch
from small_training import WIDTH, Training
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer
from trainings_models import (
    AveragedModel,
    BatchNorm,
    BufferGrows,
    BufferReplaced,
    ChannelsLast,
    DataAssigned,
    DataAverage,
    EvalMode,
    ExtraState,
    GroupAdded,
    OddTensors,
    ParameterAdded,
    Tied,
    Unfreezing,
)
from trainings_optimizers import (
    Adafactor,
    InTurns,
    Lbfgs,
    Masters,
    MilestonesInACounter,
    NumpyRate,
    OwnStateDict,
    SharingInTurns,
    TensorRate,
    TextKeys,
    TwoOptimizers,
)


class OwnGenerators(Training):
    """Draws from generators of its own, of torch, numpy and python."""

    def make_extra(self) -> dict[str, Any]:
        return {
            "torch": torch.Generator().manual_seed(1),
            "numpy": numpy.random.default_rng(1),
            "legacy": numpy.random.RandomState(1),
            "python": random.Random(1),
        }

    def batch(self, step: int) -> Tensor:
        drawn = self.extra["numpy"].random() + self.extra["legacy"].rand() + self.extra["python"].random()
        batch: Tensor = torch.randn(6, WIDTH, generator=self.extra["torch"]) + drawn
        return batch


class Containers(Training):
    """Keeps what one step leaves to the next in plain containers: a coefficient, a replay buffer, an array, a tensor."""

    def make_extra(self) -> dict[str, Any]:
        return {
            "progress": {"coefficient": 0.2, "replay": deque[Tensor](maxlen=2)},
            "totals": numpy.zeros(2),
            "weights": torch.ones(WIDTH),
        }

    def loss(self, step: int) -> Tensor:
        progress, weights = self.extra["progress"], self.extra["weights"]
        replayed = sum(batch.mean() for batch in progress["replay"])
        loss = super().loss(step) * (1 + progress["coefficient"]) + replayed + weights.sum() + float(self.extra["totals"].sum())
        result: Tensor = loss
        return result

    def after(self, step: int) -> None:
        self.extra["progress"]["coefficient"] *= 1.5
        self.extra["progress"]["replay"].append(self.batch(step))
        self.extra["totals"][step % 2] += 0.1
        self.extra["weights"].mul_(1.1)


class MicroSteps(Training):
    """The optimizer steps in every third step only: gradients wait in between."""

    def step(self, step: int) -> float:
        self.state.step_begins()
        loss = self.loss(step)
        torch.autograd.backward(loss)
        if step % 3 == 2:
            self.update(step)
            self.optimizers["optimizer"].zero_grad(set_to_none=False)
        return loss.item()


class MicroStepsOfMasters(Masters):
    """The gradients that wait are of parameters that no optimizer has."""

    def step(self, step: int) -> float:
        self.state.step_begins()
        loss = self.loss(step)
        torch.autograd.backward(loss)
        if step % 3 == 2:
            self.update(step)
        return loss.item()


class Fsdp(Training):
    """Needs a process group. A forward without a backward ends the step: the root stays gathered."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))
        fully_shard(model.get_submodule("1"), mesh=init_device_mesh("cpu", (1,)))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        return model

    def after(self, step: int) -> None:
        with torch.no_grad():
            self.loss(step)


class FsdpGathered(Fsdp):
    """All that is sharded stays gathered at the end of a step."""

    def after(self, step: int) -> None:
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()


class FsdpKept(Fsdp):
    """Nothing is dropped after a forward."""

    def make_model(self) -> nn.Module:
        model = super().make_model()
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_reshard_after_forward(False)
        return model

    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)}


class FsdpMicroSteps(Fsdp):
    step = MicroSteps.step


KINDS: tuple[Callable[[], Training], ...] = (
    Training, BatchNorm, BufferReplaced, BufferGrows, ParameterAdded, Unfreezing, GroupAdded, DataAssigned, DataAverage,
    TensorRate, NumpyRate, Masters, TextKeys, OwnStateDict, Lbfgs, Adafactor, TwoOptimizers, Tied, AveragedModel,
    OwnGenerators, Containers, ExtraState, EvalMode, ChannelsLast, MilestonesInACounter, MicroSteps, MicroStepsOfMasters, InTurns,
    SharingInTurns, OddTensors, Fsdp, FsdpGathered, FsdpKept, FsdpMicroSteps,
)  # fmt: skip
