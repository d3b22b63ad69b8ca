"""The pieces of which the matrix' trainings are made: one way to parallelise, and habits of scripts, each a few lines.

A cell is a parallelism and a set of pieces: `build("fsdp", {"evaluation", "tied"}, meshes)`. All are small enough
that a step takes milliseconds.
"""

import warnings
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_reduce
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, Adafactor, AdamW, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.checkpoint import checkpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own import uses what torch deprecates
    from torch.distributed.optim import ZeroRedundancyOptimizer

WIDTH = 8
LATER_STEP = 3  # what changes in the course of a training changes in this step


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a script would hand to protect(), and its step."""

    models: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    extra: dict[str, Any]
    script: "Script"


class Meshes:
    """Of this process; each is made when it is first asked for, and stays."""

    def __init__(self) -> None:
        self._made: dict[str, DeviceMesh] = {}

    def of(self, parallel: str) -> DeviceMesh | None:
        world = dist.get_world_size()
        shapes: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
            "fsdp": ((world,), ("dp",)),
            "hsdp": ((world, 1), ("replicate", "shard")),
            "tp": ((world,), ("tp",)),
            "tp-fsdp": ((1, world), ("dp", "tp")),
        }
        if parallel in shapes and parallel not in self._made:
            shape, names = shapes[parallel]
            self._made[parallel] = init_device_mesh("cpu", shape, mesh_dim_names=names)
        return self._made.get(parallel)


class SyncNorm(nn.Module):
    """What SyncBatchNorm does, which torch has for GPUs only: mean and variance over all ranks."""

    mean: Tensor
    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return normed(values, self.mean, self.variance)
        world = dist.get_world_size()
        mean = all_reduce(values.float().mean(0)) / world  # type: ignore[no-untyped-call]
        variance = all_reduce((values.float() - mean).square().mean(0)) / world  # type: ignore[no-untyped-call]
        self.mean.lerp_(mean.detach(), 0.1)
        self.variance.lerp_(variance.detach(), 0.1)
        return normed(values, mean, variance)


def normed(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    result: Tensor = (values - mean) / (variance + 1e-5).sqrt()
    return result


class Net(nn.Module):
    """A block, a body, a head, and `late`, which is frozen or given to the optimizer later."""

    queue: Tensor

    def __init__(self, pieces: Collection[str]) -> None:
        super().__init__()
        self.pieces = frozenset(pieces)
        self.block = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH))
        self.norm: nn.Module = nn.Identity()
        if "batchnorm" in pieces:
            self.norm = nn.BatchNorm1d(WIDTH, affine=False)
        if "syncbn" in pieces:
            self.norm = SyncNorm()
        self.body, self.late, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        if "growing" in pieces:
            self.register_buffer("queue", torch.zeros(0, WIDTH))
        self.tie()
        if "frozen" in pieces:
            self.block[0].requires_grad_(False)
        if "unfreezing" in pieces:
            self.late.requires_grad_(False)

    def tie(self) -> None:
        if "tied" in self.pieces:
            self.head.weight = self.body.weight

    def forward(self, values: Tensor) -> Tensor:
        hidden: Tensor = (
            checkpoint(self.block, values, use_reentrant=False) if "checkpointing" in self.pieces else self.block(values)
        )
        hidden = self.norm(hidden)
        if "growing" in self.pieces:
            self.queue = torch.cat([self.queue, hidden[:1].detach().float()])[-6:]
            hidden = hidden + self.queue.mean(0)
        hidden = torch.relu(self.body(hidden))
        result: Tensor = self.head(hidden + 0.1 * self.late(hidden))
        return result


class Ema(nn.Module):
    """A moving average of the model's parameters, as they lie on this rank."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, parameter in model.named_parameters():
            self.register_buffer(name.replace(".", "_"), _local(parameter).clone())

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for average, parameter in zip(self.buffers(), model.parameters(), strict=True):
            average.lerp_(_local(parameter), 0.1)


class Script:
    """The training's step. `parts`: what it trains."""

    def __init__(
        self, parallel: str, pieces: frozenset[str], net: Net, model: nn.Module, optimizers: dict[str, Optimizer]
    ) -> None:
        self.parallel, self.pieces, self.net, self.model, self.optimizers = parallel, pieces, net, model, optimizers
        self.ema = Ema(net) if "ema" in pieces else None
        self.plateau = ReduceLROnPlateau(optimizers["main"], patience=0, threshold=1.0) if "plateau" in pieces else None
        self.scaler = torch.amp.GradScaler("cpu") if "amp" in pieces else None

    def step(self, step: int) -> float:
        self.change(step)
        self.model.train()
        loss = self.step_closed(step) if "lbfgs" in self.pieces else self.step_open(step)
        if self.plateau is not None:
            self.plateau.step(loss)
        if self.ema is not None:
            self.ema.update(self.net)
        return loss + self.evaluate(step) if "evaluation" in self.pieces else loss

    def change(self, step: int) -> None:
        """What this training changes in itself in the course of time."""
        if step < LATER_STEP:
            return
        if "unfreezing" in self.pieces:
            self.net.late.requires_grad_(True)
        main = self.optimizers["main"]
        if "group-added" in self.pieces and len(main.param_groups) == 1:
            main.add_param_group({"params": list(self.net.late.parameters()), "lr": 1e-3})

    def step_open(self, step: int) -> float:
        first, last = ("micro-steps" not in self.pieces or step % 2 == each for each in (0, 1))  # of those of one update
        for optimizer in self.optimizers.values() if first else ():
            optimizer.zero_grad()
        micros = 2 if "accumulation" in self.pieces else 1
        total = 0.0
        for micro in range(micros):
            with self.unsynced() if micro + 1 < micros else nullcontext():
                loss = self.loss(step, micro) / micros
                torch.autograd.backward(self.scaler.scale(loss) if self.scaler is not None else loss)
            total += loss.item()
        self.reduce_by_hand()
        if not last:
            return total
        for optimizer in self.optimizers.values():
            if self.scaler is not None:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if self.scaler is not None:
            self.scaler.update()
        return total

    def step_closed(self, step: int) -> float:
        optimizer = self.optimizers["main"]
        last = 0.0

        def closure() -> float:
            nonlocal last
            optimizer.zero_grad()
            loss = self.loss(step, 0)
            torch.autograd.backward(loss)
            self.reduce_by_hand()
            last = loss.item()
            shared = torch.tensor(last)
            dist.all_reduce(shared)
            return shared.item() / dist.get_world_size()

        optimizer.step(closure)
        return last

    def loss(self, step: int, micro: int) -> Tensor:
        autocast = torch.autocast("cpu", torch.bfloat16) if "amp" in self.pieces else nullcontext()
        with autocast:
            batch = self.batch(1000 * step + 10 * micro)
            return mse_loss(self.model(batch).float(), batch.roll(1, 1))

    def batch(self, seed: int) -> Tensor:
        rank = 0 if self.parallel.startswith("tp") else dist.get_rank()  # ranks of one tensor-parallel group see the same
        return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(seed + rank))

    def unsynced(self) -> AbstractContextManager[None]:
        if isinstance(self.model, DistributedDataParallel):
            no_sync: AbstractContextManager[None] = self.model.no_sync()
            return no_sync
        return nullcontext()

    def reduce_by_hand(self) -> None:
        """DDP knows the parameters that needed gradients when it was made, and no others."""
        if isinstance(self.model, DistributedDataParallel) and "unfreezing" in self.pieces:
            for parameter in self.net.late.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()

    @torch.no_grad()
    def evaluate(self, step: int) -> float:
        if step % 2 == 0:
            return 0.0
        self.model.eval()
        total = mse_loss(self.model(self.batch(7)).float(), self.batch(8))
        dist.all_reduce(total)
        return total.item()


def build(parallel: str, pieces: Collection[str], meshes: Meshes) -> Training:
    """Returns the training, as its script would construct it."""
    pieces = frozenset(pieces)
    torch.manual_seed(1)
    net = Net(pieces)
    model = parallelize(parallel, net, meshes.of(parallel))
    optimizers = make_optimizers(parallel, pieces, net)
    script = Script(parallel, pieces, net, model, optimizers)
    models = {"model": model} | ({"ema": script.ema} if script.ema is not None else {})
    extra = {name: each for name, each in (("plateau", script.plateau), ("scaler", script.scaler)) if each is not None}
    return Training(models=models, optimizers=optimizers, extra=extra, script=script)


def parallelize(parallel: str, net: Net, mesh: DeviceMesh | None) -> nn.Module:
    if mesh is None:
        return DistributedDataParallel(net, bucket_cap_mb=0.0005)
    if "tp" in parallel:
        whole = ColwiseParallel(output_layouts=Replicate())
        plan = {"block.0": ColwiseParallel(), "block.3": RowwiseParallel(), "body": whole, "late": whole, "head": whole}
        requires = {name: parameter.requires_grad for name, parameter in net.named_parameters()}
        parallelize_module(net, mesh["tp"], plan)
        net.tie()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(requires[name])
    if parallel != "tp":
        sharded = mesh["dp"] if parallel == "tp-fsdp" else mesh
        fully_shard(net.block, mesh=sharded)
        fully_shard(net, mesh=sharded)
    return net


def make_optimizers(parallel: str, pieces: frozenset[str], net: Net) -> dict[str, Optimizer]:
    kind: type[Optimizer] = AdamW
    settings: dict[str, Any] = {"lr": 1e-2}
    if "lbfgs" in pieces:
        kind, settings = LBFGS, {"lr": 0.1, "max_iter": 2, "history_size": 3}
    if "adafactor" in pieces:
        kind = Adafactor
    settings |= {name: True for name in ("fused", "foreach") if name in pieces}

    def made(parameters: list[nn.Parameter], kind: type[Optimizer], settings: dict[str, Any]) -> Optimizer:
        if parallel == "zero":
            return ZeroRedundancyOptimizer(parameters, kind, **settings)
        return kind(parameters, **settings)

    late = set(net.late.parameters()) if "group-added" in pieces else set()
    parameters = [parameter for parameter in net.parameters() if parameter not in late]
    if "two-optimizers" not in pieces:
        return {"main": made(parameters, kind, settings)}
    block = set(net.block.parameters())
    rest = [parameter for parameter in parameters if parameter not in block]
    sgd: dict[str, Any] = {"lr": 1e-2, "momentum": 0.9}
    return {"main": made(rest, kind, settings), "block": made(list(net.block.parameters()), SGD, sgd)}


def _local(parameter: Tensor) -> Tensor:
    return (parameter._local_tensor if isinstance(parameter, DTensor) else parameter).detach()
