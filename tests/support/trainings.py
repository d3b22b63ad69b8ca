"""Small trainings with the habits of real ones, in one process."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
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


class BatchNorm(Training):
    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))


class _Ring(nn.Module):
    """Keeps means of what it has seen, in a buffer that is replaced in every forward; `grows`: and gets longer."""

    def __init__(self, *, grows: bool) -> None:
        super().__init__()
        self.grows = grows
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("ring", torch.zeros(0 if grows else 3))
        self.register_buffer("cache", None, persistent=False)
        self.ring: Tensor
        self.cache: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        now = x.detach().mean()[None]
        self.ring = torch.cat([self.ring, now])[-5:] if self.grows else torch.cat([self.ring[1:], now])
        self.cache = self.ring.repeat(2) if len(self.ring) > 2 else None
        y: Tensor = self.linear(x) + self.ring.sum() + (0.0 if self.cache is None else self.cache.mean())
        return y


class BufferReplaced(Training):
    def make_model(self) -> nn.Module:
        return _Ring(grows=False)


class BufferGrows(Training):
    def make_model(self) -> nn.Module:
        return _Ring(grows=True)


class ParameterAdded(Training):
    """A parameter that is made in a step, and joins the optimizer in a group of its own."""

    def before(self, step: int) -> None:
        if step >= CHANGE_AT and not hasattr(self.model, "late"):
            late = nn.Parameter(torch.ones(WIDTH))
            self.model.register_parameter("late", late)
            self.optimizers["optimizer"].add_param_group({"params": [late], "lr": 0.1})

    def loss(self, step: int) -> Tensor:
        loss = super().loss(step)
        return loss + self.model.get_parameter("late").square().sum() if hasattr(self.model, "late") else loss


class Unfreezing(Training):
    """The first layer is trained from some step on."""

    def make_model(self) -> nn.Module:
        model = super().make_model()
        model.get_submodule("0").requires_grad_(False)
        return model

    def before(self, step: int) -> None:
        if step == CHANGE_AT:
            self.model.get_submodule("0").requires_grad_(True)


class GroupAdded(Unfreezing):
    """As Unfreezing, and only then does the optimizer get these parameters."""

    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"optimizer": torch.optim.SGD(self.model.get_submodule("2").parameters(), lr=0.1, momentum=0.9)}

    def before(self, step: int) -> None:
        super().before(step)
        if step == CHANGE_AT:
            self.optimizers["optimizer"].add_param_group({"params": list(self.model.get_submodule("0").parameters())})


class DataAssigned(Training):
    def after(self, step: int) -> None:
        for parameter in self.model.parameters():
            parameter.data = parameter.data * 0.99


class DataAverage(Training):
    """A hand-made average of the weights, written through `.data`."""

    def make_models(self) -> dict[str, nn.Module]:
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        return {"model": self.model, "average": self.average}

    def after(self, step: int) -> None:
        if self.stepping:
            for mean, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.data.mul_(0.9).add_(parameter.data, alpha=0.1)

    def loss(self, step: int) -> Tensor:
        total: Tensor = super().loss(step) + self.average(self.batch(step)).mean().detach()
        return total


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


class Tied(Training):
    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        model.get_submodule("1").weight = model.get_submodule("0").weight
        return model


class TiedLate(Training):
    """Two layers are made one in some step."""

    def before(self, step: int) -> None:
        if step == CHANGE_AT:
            self.model.get_submodule("2").weight = self.model.get_submodule("0").weight


class AveragedModel(Training):
    def make_models(self) -> dict[str, nn.Module]:
        averaging = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=averaging)
        return {"model": self.model, "average": self.average}

    def after(self, step: int) -> None:
        if self.stepping:
            self.average.update_parameters(self.model)

    def loss(self, step: int) -> Tensor:
        total: Tensor = super().loss(step) + self.average(self.batch(step)).mean().detach()
        return total


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


class _Counter(nn.Module):
    """Counts its forwards where only get_extra_state sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {"count": 0, "sums": numpy.zeros(2)}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["count"] += 1
        y: Tensor = x * (1 + self.seen["count"] / 10)
        return y

    def get_extra_state(self) -> dict[str, Any]:
        return self.seen

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.seen = state


class ExtraState(Training):
    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), _Counter())


class EvalMode(Training):
    """From some step on the model stays in evaluation mode: no dropout any more."""

    def after(self, step: int) -> None:
        if step == CHANGE_AT:
            self.model.eval()


class ChannelsLast(Training):
    """Convolutions on another memory format, which is another order of summation."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 3, padding=1))
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def batch(self, step: int) -> Tensor:
        return super().batch(step)[:, :, None, None].expand(6, WIDTH, 5, 5).contiguous(memory_format=torch.channels_last)


class MilestonesInACounter(Training):
    """What the scheduler's state_dict gives is a Counter of steps."""

    def make_extra(self) -> dict[str, Any]:
        return {"scheduler": torch.optim.lr_scheduler.MultiStepLR(self.optimizers["optimizer"], [CHANGE_AT, CHANGE_AT + 2])}

    def after(self, step: int) -> None:
        self.extra["scheduler"].step()


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


class _Odd(nn.Module):
    """Tensors whose memory is not one element after the other, and of unusual types. Sums over another layout differ."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.linear.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH + 1)[::2, 1:])
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.none = nn.Parameter(torch.empty(0, 3))
        self.complex = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        odd = {
            "flags": torch.tensor([True, False]),
            "repeated": torch.randn(3).expand(5, 3),
            "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
            "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
            "sliced": torch.randn(9, 9)[::2, 1:8],
            "eighths": torch.randn(4).to(torch.float8_e4m3fn),
        }
        for name, tensor in odd.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        buffers = dict(self.named_buffers())
        total = sum((each.abs() if each.is_complex() else each.float()).sum() for each in buffers.values())
        buffers["flags"].logical_not_()
        buffers["sliced"].mul_(0.9)
        buffers["conjugate"].mul_(1j)
        y: Tensor = self.linear(x) * self.scale + self.complex.abs().sum() + total / 100
        return y


class OddTensors(Training):
    def make_model(self) -> nn.Module:
        return _Odd()


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
    OwnGenerators, ExtraState, EvalMode, ChannelsLast, MilestonesInACounter, MicroSteps, MicroStepsOfMasters, InTurns,
    SharingInTurns, OddTensors, Fsdp, FsdpGathered, FsdpKept, FsdpMicroSteps,
)  # fmt: skip
