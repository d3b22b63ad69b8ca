"""Spreads the GPT over the ranks in one of seven ways, and hides from the step which one it is.

ddp       whole copies; gradients are averaged
zero      the same, each rank with its share of the optimizer's state (ZeroRedundancyOptimizer)
fsdp      parameters, gradients and optimizer state in shards (FSDP2)
hsdp      shards within groups of ranks, copies between them
tp-fsdp   every block over two ranks (tensor parallelism), and shards over the others
pp        two stages of a pipeline (1F1B), whole copies of each over the others
3d        two stages, each block over two ranks, shards over the others
"""

import argparse
import contextlib
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from gpt import BYTES, GPT
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WAYS = ("zero", "ddp", "fsdp", "hsdp", "tp-fsdp", "pp", "3d")
STAGES = 2
TENSOR_RANKS = 2
MICROBATCHES = 2  # of a batch that goes through a pipeline
_TENSOR_PLAN: dict[str, ParallelStyle] = {
    "qkv": ColwiseParallel(),
    "project": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}

Batch = tuple[Tensor, Tensor]  # tokens and targets, each [sequences, context]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


class Whole:
    """Every rank has all layers, if not all of each: forward and backward are plain calls."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def gradients(self, batches: list[Batch]) -> float:
        """Adds the mean gradient over these batches to the parameters' gradients; returns the mean loss."""
        total = 0.0
        for index, (tokens, targets) in enumerate(batches):
            with self._synchronised(index == len(batches) - 1):
                loss = loss_of(self._model(tokens), targets)
                (loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total / len(batches)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            return loss_of(self._model(tokens), targets)

    def _synchronised(self, now: bool) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the ranks average their gradients, or leave that to a later batch."""
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_gradient_sync(now)
        elif isinstance(self._model, DistributedDataParallel) and not now:
            return self._model.no_sync()
        return contextlib.nullcontext()


class Staged:
    """Each rank has the layers of one stage of a pipeline; a batch goes through in microbatches. `ranks`: of this pipeline."""

    def __init__(self, place: PipelineStage, ranks: dist.ProcessGroup, microbatches: int) -> None:
        self._place, self._ranks = place, ranks
        self._schedule = Schedule1F1B(place, microbatches, loss_fn=loss_of)

    def gradients(self, batches: list[Batch]) -> float:
        """Adds the mean gradient over these batches to the parameters' gradients; returns the mean loss."""
        losses: list[Tensor] = []
        tokens, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        self._schedule.step(*self._input(tokens), target=self._target(targets), losses=losses)
        return self._mean(losses).item()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        with torch.no_grad():
            self._schedule.eval(*self._input(tokens), target=self._target(targets), losses=losses)
        return self._mean(losses)

    def _input(self, tokens: Tensor) -> tuple[Tensor, ...]:
        return (tokens,) if self._place.is_first else ()

    def _target(self, targets: Tensor) -> Tensor | None:
        return targets if self._place.is_last else None

    def _mean(self, losses: list[Tensor]) -> Tensor:
        """Returns the mean of the losses that the last stage has found, on every rank of the pipeline."""
        mean = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self._place.device)
        dist.broadcast(mean, group=self._ranks, group_src=STAGES - 1)
        return mean


@dataclass(frozen=True)
class Spread:
    """The training as this rank has it: it works on part `data_index` of `data_ranks` of each step's data."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    compute: Whole | Staged
    data_index: int
    data_ranks: int
    stages: int

    def clip(self, limit: float) -> None:
        """Scales the gradients of the whole model down to a norm of `limit`, whatever parts of it this rank holds."""
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        parts = [(_local(each).square().sum() * _shards(each)).float() for each in gradients]
        squared = torch.stack(parts).sum() * self.stages / dist.get_world_size()  # each number counts once, however many hold it
        dist.all_reduce(squared)
        factor = torch.clamp(limit / (squared.sqrt() + 1e-6), max=1.0)
        for gradient in gradients:
            _local(gradient).mul_(factor)


def spread(args: argparse.Namespace, device: torch.device, world_size: int) -> Spread:
    """Returns the training spread over the ranks as args.parallel says, with the same weights in every rank's copy.

    ValueError when there are too few ranks for it.
    """
    torch.manual_seed(args.seed)
    mesh = _mesh(args.parallel, device, world_size)
    dimensions = mesh.mesh_dim_names or ()
    stage = mesh.get_local_rank("pp") if "pp" in dimensions else None
    model = _layers(args, stage).to(device)
    for block in model.blocks:
        if "tp" in dimensions:
            parallelize_module(block, mesh["tp"], _TENSOR_PLAN)
        if args.compile:
            block.compile()
    whole = _over_data_ranks(model, args.parallel, mesh)
    compute: Whole | Staged = Whole(whole)
    if stage is not None:
        ranks = mesh.get_group("pp")
        place = _place(args, whole, stage, ranks, device)
        compute = Staged(place, ranks, MICROBATCHES * args.accumulate)
    index, ranks_of_data = _data_part(mesh)
    return Spread(whole, _optimizer(whole, args), compute, index, ranks_of_data, 1 if stage is None else STAGES)


def _mesh(way: str, device: torch.device, world_size: int) -> DeviceMesh:
    shape = {
        "hsdp": {"replicate": 2, "shard": world_size // 2},
        "tp-fsdp": {"dp": world_size // TENSOR_RANKS, "tp": TENSOR_RANKS},
        "pp": {"pp": STAGES, "dp": world_size // STAGES},
        "3d": {"pp": STAGES, "dp": world_size // (STAGES * TENSOR_RANKS), "tp": TENSOR_RANKS},
    }.get(way, {"dp": world_size})
    if math.prod(shape.values()) != world_size or not world_size:
        raise ValueError(f"--parallel {way} cannot be spread over {world_size} ranks: {shape}")
    return init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def _data_part(mesh: DeviceMesh) -> tuple[int, int]:
    """Returns which of how many parts of the data this rank works on: ranks of one pipeline or one block share a part."""
    index, parts = 0, 1
    for name, size, at in zip(mesh.mesh_dim_names or (), mesh.shape, mesh.get_coordinate() or (), strict=True):
        if name not in ("pp", "tp"):
            index, parts = index * size + at, parts * size
    return index, parts


def _layers(args: argparse.Namespace, stage: int | None) -> GPT:
    """Returns the model, or the stage's part of it."""
    first_half = -(-args.layers // STAGES)
    return GPT(
        layers=args.layers if stage is None else (first_half, args.layers - first_half)[stage],
        heads=args.heads, width=args.width, context=args.context, dropout=args.dropout,
        first=stage in (None, 0), last=stage in (None, STAGES - 1),
        bf16=args.bf16, checkpointing=args.activation_checkpointing,
    )  # fmt: skip


def _place(
    args: argparse.Namespace, stage_model: nn.Module, stage: int, ranks: dist.ProcessGroup, device: torch.device
) -> PipelineStage:
    """Returns the stage. Its shapes are given: torch would find them out with a backward of its own, which DDP takes for one."""
    shape = (args.batch // MICROBATCHES, args.context)
    tokens = torch.zeros(shape, dtype=torch.long, device=device)
    between = torch.zeros(*shape, args.width, device=device, requires_grad=True)
    logits = torch.zeros(*shape, BYTES, device=device, requires_grad=True)
    goes_in, comes_out = tokens if stage == 0 else between, logits if stage == STAGES - 1 else between
    return PipelineStage(stage_model, stage, STAGES, device, goes_in, comes_out, group=ranks)


def _over_data_ranks(model: GPT, way: str, mesh: DeviceMesh) -> nn.Module:
    if way in ("ddp", "zero", "pp"):
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    shards = mesh if way in ("fsdp", "hsdp") else mesh["dp"]
    for block in model.blocks:
        fully_shard(block, mesh=shards)
    fully_shard(model, mesh=shards)
    return model


def _optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    if args.parallel == "zero":
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=args.lr, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shards(tensor: Tensor) -> int:
    """Returns over how many ranks of its stage the tensor is cut into parts."""
    if not isinstance(tensor, DTensor):
        return 1
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, placement in sizes if placement.is_shard())
