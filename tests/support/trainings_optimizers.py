"""Trainings whose optimizers have habits of real ones."""

from typing import Any

import numpy
import torch
from small_training import CHANGE_AT, WIDTH, Training
from torch import Tensor, nn
from torch.optim import Optimizer


class TensorRate(Training):
    """A learning rate that is a tensor, changed in place by its scheduler."""

    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": torch.optim.AdamW(self.model.parameters(), lr=torch.tensor(0.01))}

    def make_extra(self) -> dict[str, Any]:
        return {"scheduler": torch.optim.lr_scheduler.ExponentialLR(self.optimizers["optimizer"], 0.8)}

    def after(self, step: int) -> None:
        self.extra["scheduler"].step()


class NumpyRate(Training):
    def before(self, step: int) -> None:
        for group in self.optimizers["optimizer"].param_groups:
            group["lr"] = 0.01 * (0.6 + 0.4 * numpy.cos(step / 3))
            group["history"] = numpy.append(group.get("history", numpy.zeros(1)), step)


class Masters(Training):
    """bfloat16 weights; the optimizer has float32 copies of them that are nowhere else."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).bfloat16()

    def make_optimizers(self) -> dict[str, Optimizer]:
        self.masters = [parameter.detach().float().clone() for parameter in self.model.parameters()]
        return {"optimizer": torch.optim.AdamW(self.masters, lr=0.01)}

    def batch(self, step: int) -> Tensor:
        return super().batch(step).bfloat16()

    def update(self, step: int) -> None:
        for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        super().update(step)
        if self.stepping:
            with torch.no_grad():
                for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
                    parameter.copy_(master)


class _Warming(Optimizer):
    """Keeps a count under a text, another in a dict, and a momentum in a list."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.state["count"] = 0  # type: ignore[index]
        self.state["counts"] = {"steps": 0, "sum": torch.zeros(2)}  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        state: Any = self.state
        state["count"] += 1
        state["counts"]["steps"] += 1
        state["counts"]["sum"] += 0.5
        for group in self.param_groups:
            for parameter in group["params"]:
                past = self.state[parameter].setdefault("past", [])
                past.append(parameter.grad.clone())
                del past[:-2]
                scale = -group["lr"] * min(1.0, state["count"] / 5) / (1 + state["counts"]["sum"][0].item())
                for gradient in past:
                    parameter.add_(gradient, alpha=scale)


class TextKeys(Training):
    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": _Warming(self.model.parameters())}


class _Counting(torch.optim.SGD):
    """Says in its state_dict what it keeps as an attribute (as PostLocalSGDOptimizer does)."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.count, self.past = 0, torch.zeros(1)

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        self.past += self.count
        for group in self.param_groups:
            group["lr"] = 0.1 / self.count
        return super().step()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count, "past": self.past}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.count, self.past = state_dict["count"], state_dict["past"]


class OwnStateDict(Training):
    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": _Counting(self.model.parameters())}


class Lbfgs(Training):
    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": torch.optim.LBFGS(self.model.parameters(), lr=0.5, history_size=3, max_iter=2)}

    def make_model(self) -> nn.Module:
        return nn.Linear(WIDTH, WIDTH)

    def update(self, step: int) -> None:
        def closure() -> float:
            self.optimizers["optimizer"].zero_grad()
            loss = self.loss(step)
            torch.autograd.backward(loss)
            return loss.item()

        if self.stepping:
            self.optimizers["optimizer"].step(closure)


class Adafactor(Training):
    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": torch.optim.Adafactor(self.model.parameters(), lr=0.1)}


class TwoOptimizers(Training):
    def make_optimizers(self) -> dict[str, Optimizer]:
        return {
            "first": torch.optim.Adam(self.model.get_submodule("0").parameters()),
            "second": torch.optim.SGD(self.model.get_submodule("2").parameters(), lr=0.1, momentum=0.5),
        }


class MilestonesInACounter(Training):
    """What the scheduler's state_dict gives is a Counter of steps."""

    def make_extra(self) -> dict[str, Any]:
        return {"scheduler": torch.optim.lr_scheduler.MultiStepLR(self.optimizers["optimizer"], [CHANGE_AT, CHANGE_AT + 2])}

    def after(self, step: int) -> None:
        self.extra["scheduler"].step()


class InTurns(Training):
    """Two optimizers take turns, and each lets the other's gradients be."""

    def make_optimizers(self) -> dict[str, Optimizer]:
        return {name: torch.optim.Adam(self.model.get_submodule(name).parameters(), lr=0.01) for name in ("0", "2")}

    def step(self, step: int) -> float:
        self.state.step_begins()
        loss = self.loss(step)
        torch.autograd.backward(loss)
        if self.stepping:
            optimizer = self.optimizers["02"[step % 2]]
            self.state.optimizer_steps(optimizer)
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()


class SharingInTurns(Training):
    """Two optimizers that take turns share a layer: the second one uses what both steps have summed up."""

    def make_optimizers(self) -> dict[str, Optimizer]:
        every = torch.optim.Adam(self.model.parameters(), lr=0.01)
        return {"every": every, "some": torch.optim.SGD(self.model.get_submodule("2").parameters(), lr=0.1)}

    def step(self, step: int) -> float:
        self.state.step_begins()
        loss = self.loss(step)
        torch.autograd.backward(loss)
        if self.stepping:
            optimizer = self.optimizers[("every", "some")[step % 2]]
            self.state.optimizer_steps(optimizer)
            optimizer.step()
            if step % 2:
                self.model.zero_grad()
        return loss.item()
