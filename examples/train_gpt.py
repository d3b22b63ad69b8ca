"""Trains a byte-level GPT on the source text of Python's standard library, which every machine has.

    python examples/train_gpt.py --steps 100
    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py --steps 100
    deadpool-launch --standalone --nnodes 2 --nproc-per-node 2 --spares 1 examples/train_gpt.py --steps 100

Under deadpool-launch a rank or a node may die at any moment and the losses stay those of the unbroken run, bit for bit. What the
script does for that: it calls join() and protect(), and all that changes state happens in `train_step`, which may run again:
it draws its data from the step number alone and begins by putting model and gradients into a known state.
"""

import argparse
import gc
import hashlib
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from gpt import draw, learning_rate_curve, load_corpus
from gpt_parallel import MICROBATCHES, WAYS, spread
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

import deadpool

CHECKPOINTS_KEPT = 2  # the newest may be incomplete: a rank can die while it writes


class Losses(NamedTuple):
    """`train`: this rank's, before the update. `held_out`: on data not trained on, after it; None when it was not due."""

    train: float
    held_out: float | None


# ---------------------------------------------------------------- the state that this rank holds


def local(tensor: Tensor) -> Tensor:
    """Returns the part of a tensor that this rank holds: all of it, unless FSDP has sharded it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def optimizer_entries(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Yields each parameter that this rank's optimizer updates and the state kept for it (ZeRO: this rank's share)."""
    own = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    for group in own.param_groups:
        for parameter in group["params"]:
            yield parameter, own.state[parameter]


def rng_states(device: torch.device) -> dict[str, Tensor]:
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def digest(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LambdaLR, device: torch.device) -> str:
    """Returns sha256 over parameters, optimizer state, schedule and RNG of this rank."""
    total = hashlib.sha256()
    tensors = list(model.state_dict().items())
    tensors += [(key, state[key]) for _, state in optimizer_entries(optimizer) for key in sorted(state)]
    tensors += list(rng_states(device).items())
    for name, tensor in tensors:
        total.update(name.encode())
        total.update(local(tensor).detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    total.update(
        repr((scheduler.last_epoch, [lr.hex() for lr in map(float, scheduler.get_last_lr())], random.getstate())).encode()
    )
    return total.hexdigest()


# ---------------------------------------------------------------- checkpoints on disk (for torchrun; DeadPool needs none)


class Checkpoints:
    """One file per rank and step, with what the rank holds: a resume needs the same number of ranks and the same --parallel."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder, self.rank, self.world_size = folder, rank, world_size
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, step: int, rank: int) -> Path:
        return self.folder / f"step-{step:08d}-rank-{rank}-of-{self.world_size}.pt"

    def steps(self, ranks: range) -> list[int]:
        """Returns the steps for which every one of these ranks has a file, oldest first."""
        found = {int(match[1]) for file in self.folder.iterdir() if (match := re.match(r"step-(\d+)-rank-", file.name))}
        return sorted(step for step in found if all(self.path(step, rank).exists() for rank in ranks))

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LambdaLR, device: torch.device
    ) -> None:
        """Writes the state after `step` steps, then removes this rank's oldest files."""
        content = {
            "model": {name: local(tensor) for name, tensor in model.state_dict().items()},
            "optimizer": [{key: local(value) for key, value in state.items()} for _, state in optimizer_entries(optimizer)],
            "scheduler": scheduler.state_dict(),
            "rng": rng_states(device),
        }
        path = self.path(step, self.rank)
        partial = path.with_suffix(f".{os.getpid()}.part")
        torch.save(content, partial)
        partial.replace(path)
        for old in self.steps(range(self.rank, self.rank + 1))[:-CHECKPOINTS_KEPT]:
            self.path(old, self.rank).unlink()

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LambdaLR, device: torch.device) -> int:
        """Loads the newest state that all ranks have written and returns how many steps it has done; 0 when there is none."""
        complete = self.steps(range(self.world_size))
        if not complete:
            return 0
        content = torch.load(self.path(complete[-1], self.rank), map_location=device, weights_only=True)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                local(tensor).copy_(content["model"][name])
        for (parameter, state), saved in zip(optimizer_entries(optimizer), content["optimizer"], strict=True):
            state.update({key: shard_as(parameter, value) for key, value in saved.items()})
        scheduler.load_state_dict(content["scheduler"])
        for group, lr in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = lr
        torch.set_rng_state(content["rng"]["cpu"].cpu())
        if device.type == "cuda":
            torch.cuda.set_rng_state(content["rng"]["cuda"].cpu(), device)
        return complete[-1]


def shard_as(parameter: Tensor, value: Tensor) -> Tensor:
    """Returns this rank's part of an optimizer's tensor as what the optimizer expects: sharded as the parameter is."""
    if not isinstance(parameter, DTensor) or value.dim() == 0:  # a step count is a plain scalar
        return value
    return DTensor.from_local(
        value, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


# ---------------------------------------------------------------- the run


def append_line(path: Path | None, **fields: object) -> None:
    """Appends one JSON line in one write: the ranks share the file."""
    if path is None:
        return
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, (json.dumps(fields) + "\n").encode())
    finally:
        os.close(fd)


def log_losses(path: Path | None, rank: int, step: int, losses: Losses) -> None:
    held_out = {} if losses.held_out is None else {"held_out": losses.held_out.hex()}
    append_line(path, rank=rank, step=step, loss=losses.train.hex(), **held_out)


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--parallel", choices=WAYS, default="zero", help="how the model is spread: see gpt_parallel.py")
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--layers", type=int, default=3)
    sizes.add_argument("--heads", type=int, default=4)
    sizes.add_argument("--width", type=int, default=96)
    sizes.add_argument("--context", type=int, default=64, help="bytes that the model sees")
    sizes.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    training = parser.add_argument_group("training")
    training.add_argument("--dropout", type=float, default=0.1)
    training.add_argument("--lr", type=float, default=1e-3)
    training.add_argument("--warmup-steps", type=int, default=20)
    training.add_argument("--clip-norm", type=float, default=1.0)
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches per step")
    training.add_argument("--bf16", action="store_true", help="compute in bfloat16 where that is safe")
    training.add_argument("--activation-checkpointing", action="store_true", help="compute activations twice, keep few")
    training.add_argument("--compile", action="store_true", help="torch.compile for each block")
    training.add_argument(
        "--eval-every", type=int, default=20, help="steps between held-out losses (one comes at the end anyway)"
    )
    training.add_argument("--eval-batches", type=int, default=2)
    output = parser.add_argument_group("output (files on storage that all ranks share)")
    output.add_argument("--loss-log", type=Path, metavar="FILE", help="a line per rank and step; see compare_runs.py")
    output.add_argument("--digest", type=Path, metavar="FILE", help="a line per rank at the end: sha256 over its whole state")
    output.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="resume from the newest checkpoint in DIR")
    output.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS", help="write one every so many steps")
    args = parser.parse_args(arguments)
    if args.parallel in ("pp", "3d") and args.batch % MICROBATCHES:
        parser.error(f"--batch {args.batch}: a pipeline cuts it into {MICROBATCHES} microbatches")
    if args.checkpoint_every and not args.checkpoint_dir:
        parser.error("--checkpoint-every needs --checkpoint-dir")
    return args


def main() -> None:
    args = parse_args()
    texts = load_corpus()  # before join(): a stand-in has done it when it is needed
    train(args, deadpool.join(), *texts)
    gc.collect()  # without DDP: freeing a Gloo group with it can wait for ever for one of Gloo's threads (torch 2.13)
    dist.destroy_process_group()


def train(args: argparse.Namespace, run: deadpool.Run, train_text: Tensor, held_out_text: Tensor) -> None:
    try:
        training = spread(args, run.device, run.world_size)
    except ValueError as error:
        sys.exit(f"train_gpt.py: {error}")
    model, optimizer = training.model, training.optimizer
    torch.manual_seed(args.seed + 1 + training.data_index)  # for dropout: ranks that share data share it
    random.seed(args.seed + 1 + training.data_index)
    scheduler = LambdaLR(optimizer, learning_rate_curve(args.warmup_steps, args.steps))

    checkpoints = Checkpoints(args.checkpoint_dir, run.rank, run.world_size) if args.checkpoint_dir else None
    first = 0
    if not run.joined_late:  # who takes over a rank in a running job gets its state from there, and adds to its files
        first = checkpoints.resume(model, optimizer, scheduler, run.device) if checkpoints else 0
        if run.rank == 0 and first == 0:
            for file in filter(None, (args.loss_log, args.digest)):
                file.write_bytes(b"")
        dist.barrier()  # nobody writes a line that rank 0 would then remove
    guard = run.protect(model=model, optimizer=optimizer, extra={"scheduler": scheduler})

    def batch(text: Tensor, key: str, count: int) -> tuple[Tensor, Tensor]:
        tokens, targets = draw(text, f"{key} {training.data_index}", count, args.context)
        return tokens.to(run.device), targets.to(run.device)

    def held_out_loss() -> float:
        model.eval()
        count = args.batch * args.accumulate
        losses = [training.compute.loss(*batch(held_out_text, f"{i}", count)) for i in range(args.eval_batches)]
        total = torch.stack(losses).sum()
        dist.all_reduce(total)
        return float(total.item() / (args.eval_batches * run.world_size))

    def train_step(step: int) -> Losses:
        model.train()  # a step that was broken off may have left it evaluating
        optimizer.zero_grad()
        keys = [f"{args.seed} {step}" + (f".{i}" if i else "") for i in range(args.accumulate)]
        loss = training.compute.gradients([batch(train_text, key, args.batch) for key in keys])
        training.clip(args.clip_norm)
        optimizer.step()
        scheduler.step()
        due = (step + 1) % args.eval_every == 0 or step + 1 == args.steps
        return Losses(loss, held_out_loss() if due else None)

    began_s, began_step = time.perf_counter(), first
    for step, losses in guard.run(train_step, start=first, until=args.steps):
        guard.report(loss=losses.train, held_out=losses.held_out)
        log_losses(args.loss_log, run.rank, step, losses)
        if checkpoints and args.checkpoint_every and (step + 1) % args.checkpoint_every == 0:
            checkpoints.save(step + 1, model, optimizer, scheduler, run.device)
        if run.rank == 0 and losses.held_out is not None:
            rate = (step + 1 - began_step) / (time.perf_counter() - began_s)
            began_s, began_step = time.perf_counter(), step + 1
            print(f"step {step + 1:5d}  loss {losses.train:.3f}  held-out {losses.held_out:.3f}  {rate:.1f} steps/s", flush=True)

    append_line(args.digest, rank=run.rank, digest=digest(model, optimizer, scheduler, run.device))


if __name__ == "__main__":
    main()
