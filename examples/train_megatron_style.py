"""Trains the GPT the way Megatron does: groups made by hand, no wrapper of torch's, bf16 weights with fp32 masters in shards.

    deadpool-launch --standalone --nnodes 2 --nproc-per-node 4 --spares 1 examples/train_megatron_style.py --steps 40

A rank belongs to a tensor group (its part of every matrix), a pipeline group (its layers), a data group (its copy) and, on the
first and the last stage, to an embedding group, since both hold the same embedding. The optimizer keeps all weights of a rank in
one flat bf16 buffer and a share of their fp32 masters; gradients are reduced and scattered, weights gathered, once a step.

For DeadPool it is a script like any other: join(), protect(), and a step that draws its data from its number.
"""

import argparse
import hashlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import BYTES, draw, load_corpus
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import cross_entropy, embedding, gelu, linear, scaled_dot_product_attention
from train_gpt import Losses, append_line, log_losses

import deadpool

TENSOR = PIPELINE = 2  # ranks
MICROBATCHES = 2
HEAD_WIDTH = 16


# ---------------------------------------------------------------- groups


@dataclass(frozen=True)
class ParallelGroups:
    """This rank's groups, and its place in each. Every rank makes all groups, in the same order."""

    tensor: ProcessGroup
    pipeline: ProcessGroup
    data: ProcessGroup
    embedding: ProcessGroup | None  # None on the stages between the first and the last

    @classmethod
    def make(cls, world_size: int) -> "ParallelGroups":
        grid = torch.arange(world_size).view(PIPELINE, -1, TENSOR)  # [stage, copy, part]
        copies = range(grid.shape[1])
        in_tensor = _own(grid[s, d] for s, d in itertools.product(range(PIPELINE), copies))
        in_pipeline = _own(grid[:, d, t] for d, t in itertools.product(copies, range(TENSOR)))
        in_data = _own(grid[s, :, t] for s, t in itertools.product(range(PIPELINE), range(TENSOR)))
        at_the_ends = _own(grid[[0, -1], d, t] for d, t in itertools.product(copies, range(TENSOR)))
        assert in_tensor is not None
        assert in_pipeline is not None
        assert in_data is not None
        return cls(in_tensor, in_pipeline, in_data, at_the_ends)

    @property
    def is_first(self) -> bool:
        return dist.get_rank(self.pipeline) == 0

    @property
    def is_last(self) -> bool:
        return dist.get_rank(self.pipeline) == PIPELINE - 1


def _own(all_ranks: Iterable[Tensor]) -> ProcessGroup | None:
    """Makes a group of each of these sets of ranks and returns the one that this rank is in."""
    own: ProcessGroup | None = None
    for ranks in all_ranks:
        group = dist.new_group(ranks.tolist())
        if dist.get_rank() in ranks:
            own = group
    return own


# ---------------------------------------------------------------- tensor parallelism


class _Copied(torch.autograd.Function):
    """Forward: nothing. Backward: the gradients of all parts are added up."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class _Summed(torch.autograd.Function):
    """Forward: the results of all parts are added up. Backward: nothing."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Layer(nn.Module):
    """Attention and an MLP, of which this rank has its share of heads and of hidden units."""

    def __init__(self, width: int, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width // TENSOR), nn.Linear(width // TENSOR, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width // TENSOR), nn.Linear(4 * width // TENSOR, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self._copied(self.attention_norm(x))).unflatten(-1, (-1, 3, HEAD_WIDTH))
        q, k, v = heads.permute(3, 0, 2, 1, 4).unbind(0)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self._summed(self.project(mixed))
        return x + self._summed(self.down(gelu(self.up(self._copied(self.mlp_norm(x))))))

    def _copied(self, x: Tensor) -> Tensor:
        copied: Tensor = _Copied.apply(x, self.group)  # type: ignore[no-untyped-call]
        return copied

    def _summed(self, x: Tensor) -> Tensor:
        summed: Tensor = _Summed.apply(x, self.group)  # type: ignore[no-untyped-call]
        return summed


class StageLayers(nn.Module):
    """One stage's layers. The first and the last stage both hold the embedding: bytes come in by it, logits go out by it."""

    def __init__(self, groups: ParallelGroups, layers: int, width: int) -> None:
        super().__init__()
        self.groups = groups
        torch.manual_seed(0)  # what several ranks hold must begin the same
        self.embedding = nn.Parameter(torch.randn(BYTES, width) * 0.02) if groups.embedding is not None else None
        torch.manual_seed(1 + dist.get_rank(groups.pipeline) * TENSOR + dist.get_rank(groups.tensor))
        self.layers = nn.ModuleList(Layer(width, groups.tensor) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if groups.is_last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.groups.is_first and self.embedding is not None:
            x = embedding(x, self.embedding)
        for layer in self.layers:
            x = layer(x)
        if self.norm is not None and self.embedding is not None:
            x = linear(self.norm(x), self.embedding)
        return x


# ---------------------------------------------------------------- pipeline


Batches = list[tuple[Tensor, Tensor]]  # tokens and targets of each microbatch, [sequences, context]


def forward(stage: StageLayers, batches: Batches, width: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Returns what came in and went out for each microbatch, and their mean loss: on the last stage, zero elsewhere."""
    groups, ranks = stage.groups, dist.get_process_group_ranks(stage.groups.pipeline)
    at = dist.get_rank(groups.pipeline)
    runs: list[tuple[Tensor, Tensor]] = []
    losses = torch.zeros(())
    for tokens, targets in batches:
        incoming = tokens
        if not groups.is_first:
            incoming = torch.empty(*tokens.shape, width, dtype=torch.bfloat16, requires_grad=True)
            dist.recv(incoming.detach(), src=ranks[at - 1], group=groups.pipeline)
        outgoing = stage(incoming)
        if groups.is_last:
            outgoing = cross_entropy(outgoing.float().flatten(0, 1), targets.flatten()) / len(batches)
            losses += outgoing.detach()
        else:
            dist.send(outgoing.detach(), dst=ranks[at + 1], group=groups.pipeline)
        runs.append((incoming, outgoing))
    return runs, losses


def gradients(stage: StageLayers, batches: Batches, width: int) -> Tensor:
    """Adds the mean gradient of these microbatches; returns their mean loss as `forward` does."""
    groups, ranks = stage.groups, dist.get_process_group_ranks(stage.groups.pipeline)
    at = dist.get_rank(groups.pipeline)
    runs, losses = forward(stage, batches, width)
    for incoming, outgoing in runs:
        gradient = None
        if not groups.is_last:
            gradient = torch.empty_like(outgoing)
            dist.recv(gradient, src=ranks[at + 1], group=groups.pipeline)
        outgoing.backward(gradient)  # type: ignore[no-untyped-call]
        if not groups.is_first:
            assert incoming.grad is not None
            dist.send(incoming.grad, dst=ranks[at - 1], group=groups.pipeline)
    return losses


# ---------------------------------------------------------------- optimizer


class DistributedOptimizer(torch.optim.Optimizer):
    """AdamW on fp32 masters, of which each rank of the data group keeps a share; the weights are bf16, in one flat buffer."""

    def __init__(self, stage: StageLayers, lr: float) -> None:
        self.stage, self.group = stage, stage.groups.data
        self.weights = list(stage.parameters())
        size, shares = sum(each.numel() for each in self.weights), dist.get_world_size(self.group)
        self.share = -(-size // shares)
        self.flat = torch.zeros(self.share * shares, dtype=torch.bfloat16)
        self.gradients = torch.zeros(self.share * shares)
        for weight, part in zip(self.weights, self._parts(self.flat), strict=True):
            part.copy_(weight.detach())
            weight.data = part
        own = self.flat[self.share * dist.get_rank(self.group) :][: self.share]
        self.master = nn.Parameter(own.float())
        self.optim = torch.optim.AdamW([self.master], lr=lr)
        super().__init__(self.weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        embedding_group = self.stage.groups.embedding
        if embedding_group is not None:  # both stages have used it
            assert self.stage.embedding is not None
            dist.all_reduce(self.stage.embedding.grad, group=embedding_group)
        for weight, part in zip(self.weights, self._parts(self.gradients), strict=True):
            assert weight.grad is not None
            part.copy_(weight.grad)
        own = torch.empty(self.share)
        dist.reduce_scatter(own, self._shares(self.gradients), group=self.group)
        self.master.grad = own / dist.get_world_size(self.group)
        self.optim.step()
        dist.all_gather(self._shares(self.flat), self.master.detach().bfloat16(), group=self.group)

    def _shares(self, flat: Tensor) -> list[Tensor]:
        """Returns each data rank's share of a flat buffer."""
        return list(flat.chunk(dist.get_world_size(self.group)))

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """Returns each weight's part of a flat buffer."""
        ends = list(itertools.accumulate(each.numel() for each in self.weights))
        return [flat[end - each.numel() : end].view_as(each) for each, end in zip(self.weights, ends, strict=True)]


# ---------------------------------------------------------------- the run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=1, help="per stage")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2, help="sequences per microbatch")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--eval-every", type=int, default=20, help="steps between held-out losses")
    parser.add_argument("--loss-log", type=Path, metavar="FILE", help="a line per rank and step; see compare_runs.py")
    parser.add_argument(
        "--digest", type=Path, metavar="FILE", help="a line per rank at the end: sha256 of its weights and masters"
    )
    args = parser.parse_args()
    text, held_out_text = load_corpus()
    run = deadpool.join()
    if run.world_size % (TENSOR * PIPELINE):
        raise SystemExit(f"train_megatron_style.py: {run.world_size} ranks; it needs a multiple of {TENSOR * PIPELINE}")
    groups = ParallelGroups.make(run.world_size)
    stage = StageLayers(groups, args.layers, args.width).to(torch.bfloat16)
    optimizer = DistributedOptimizer(stage, args.lr)
    guard = run.protect(model=stage, optimizer=optimizer)

    def batches(text: Tensor, key: str) -> Batches:
        share = dist.get_rank(groups.data)
        return [draw(text, f"{key} {share} {i}", args.batch, args.context) for i in range(MICROBATCHES)]

    def mean(loss: Tensor) -> float:
        """Returns the loss that the last stage has found, on every rank of the pipeline."""
        dist.all_reduce(loss, group=groups.pipeline)
        return loss.item()

    def train_step(step: int) -> Losses:
        for weight in optimizer.weights:
            weight.grad = None
        loss = gradients(stage, batches(text, str(step)), args.width)
        optimizer.step()
        if (step + 1) % args.eval_every:
            return Losses(mean(loss), None)
        with torch.no_grad():
            _, held_out = forward(stage, batches(held_out_text, "held out"), args.width)
        return Losses(mean(loss), mean(held_out))

    for step, losses in guard.run(train_step, until=args.steps):
        log_losses(args.loss_log, run.rank, step, losses)
        if run.rank == 0 and losses.held_out is not None:
            print(f"step {step + 1:5d}  loss {losses.train:.3f}  held-out {losses.held_out:.3f}", flush=True)

    total = hashlib.sha256(optimizer.flat.view(torch.uint8).numpy().tobytes())
    total.update(optimizer.master.detach().view(torch.uint8).numpy().tobytes())
    append_line(args.digest, rank=run.rank, digest=total.hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
