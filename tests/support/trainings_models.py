"""Trainings whose models have habits of real ones: what they hold, and how that changes."""

import copy
from typing import Any

import numpy
import torch
from small_training import CHANGE_AT, WIDTH, Training
from torch import Tensor, nn
from torch.optim import Optimizer


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


class Tied(Training):
    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        model.get_submodule("1").weight = model.get_submodule("0").weight
        return model


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
