"""A small training with the habits of a plain one, in one process; kinds of it override what is their own."""

import random
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.trainer_hooks.state.training_state import TrainingState

WIDTH = 4
CHANGE_AT = 3  # the step in which what changes once does


class Training:
    """Plain: a linear model and AdamW. A kind overrides what is its own. `stepping`: False in a step that will be discarded."""

    strict = True

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        self.stepping = True
        self.model: nn.Module = self.make_model()
        self.optimizers: dict[str, Optimizer] = self.make_optimizers()
        self.extra: dict[str, Any] = self.make_extra()
        self.models = self.make_models()
        self.state = TrainingState(models=self.models, optimizers=self.optimizers, extra=self.extra, strict=self.strict)

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))

    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": torch.optim.AdamW(self.model.parameters(), lr=0.01)}

    def make_extra(self) -> dict[str, Any]:
        return {}

    def make_models(self) -> dict[str, nn.Module]:
        return {"model": self.model}

    def batch(self, step: int) -> Tensor:
        return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(step))

    def loss(self, step: int) -> Tensor:
        x = self.batch(step)
        loss: Tensor = (self.model(x) - x.roll(1, 1)).square().mean()
        return loss

    def before(self, step: int) -> None:
        """What the step does first."""

    def after(self, step: int) -> None:
        """What the step does once the optimizers have stepped."""

    def step(self, step: int) -> float:
        self.state.step_begins()
        self.before(step)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss = self.loss(step)
        torch.autograd.backward(loss)
        self.update(step)
        self.after(step)
        return loss.item() + random.random() + float(numpy.random.rand())

    def update(self, step: int) -> None:
        for optimizer in self.optimizers.values():
            if self.stepping:
                self.state.optimizer_steps(optimizer)  # as the guard does
                optimizer.step()
