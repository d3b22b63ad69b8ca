"""Trains the GPT as torchtitan does: built on the meta device, FSDP2 and tensor parallelism, checkpoints of its own as it goes.

    torchrun --standalone --nproc-per-node 4 examples/train_titan_style.py --checkpoint-dir saved --checkpoint-every 10
    deadpool-launch --standalone --nnodes 2 --nproc-per-node 2 --spares 1 examples/train_titan_style.py --checkpoint-dir saved ...

Three things are as DeadPool needs them:
- memory comes before protect(), which refuses parameters on the meta device; a process that takes over a rank does the same, and
  what it has initialised is overwritten.
- the data comes from a StatefulDataLoader whose position belongs to the state. Its own load_state_dict() acts at the next iter():
  a recovery would go back and the data would not. `Batches` goes back immediately.
- metrics and checkpoints are in the loop body, where they may communicate. A body that a failure has interrupted runs again, on
  all ranks: a checkpoint is written again, with the same bytes, and is whole once its .metadata is there.
"""

import argparse
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, learning_rate_curve, load_corpus
from gpt_parallel import Batch, Spread, Whole
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import deadpool

TENSOR_PLAN: dict[str, ParallelStyle] = {
    "qkv": ColwiseParallel(),
    "project": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}

# ---------------------------------------------------------------- data


class Windows(IterableDataset[Batch]):
    """Part `index` of `parts` of the text, window by window, without end. Where it is: `position`, in windows."""

    def __init__(self, text: Tensor, context: int, index: int, parts: int) -> None:
        self.position = 0
        self._text, self._context, self._index, self._parts = text, context, index, parts

    def __iter__(self) -> Iterator[Batch]:
        windows = (len(self._text) - 1) // self._context
        while True:
            start = (self.position * self._parts + self._index) % windows * self._context
            self.position += 1
            window = self._text[start : start + self._context + 1].long()
            yield window[:-1], window[1:]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Batches:
    """The batches of a loader, one for each next(). load_state_dict() acts immediately: the next batch is the saved one's."""

    def __init__(self, loader: StatefulDataLoader[Batch]) -> None:
        self._loader = loader
        self._iterator = iter(loader)

    def __next__(self) -> Batch:
        tokens, targets = next(self._iterator)
        return tokens, targets

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._iterator = iter(self._loader)


# ---------------------------------------------------------------- the model


def build(args: argparse.Namespace, mesh: DeviceMesh) -> GPT:
    """Returns the model with this rank's shards in memory, and never more of it than one whole tensor at a time."""
    with torch.device("meta"):
        model = GPT(layers=args.layers, heads=args.heads, width=args.width, context=args.context, dropout=0.0)
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], TENSOR_PLAN)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    model.to_empty(device=mesh.device_type)
    initialise(model, args.seed)
    return model


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Gives every parameter its first values: the same model however it is spread, since each tensor is drawn whole."""
    for name, parameter in model.named_parameters():
        whole = torch.zeros(parameter.shape)
        if name.endswith("norm.weight"):
            whole.fill_(1.0)
        elif not name.endswith("bias"):
            whole.normal_(std=0.02, generator=torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode())))
        assert isinstance(parameter, DTensor)
        parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None))


class Trained:
    """Model and optimizer as torch.distributed.checkpoint saves them: readable whatever the number of ranks."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def newest(folder: Path) -> int:
    """Returns the step of the newest whole checkpoint; 0 when there is none."""
    return max((int(file.parent.name.removeprefix("step-")) for file in folder.glob("step-*/.metadata")), default=0)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns sha256 over this rank's shards and optimizer state."""
    total = hashlib.sha256()
    kept = [optimizer.state[parameter][key] for parameter in model.parameters() for key in ("exp_avg", "exp_avg_sq", "step")]
    for tensor in [*model.parameters(), *kept]:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        total.update(local.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


# ---------------------------------------------------------------- the run


def append_line(path: Path | None, **fields: object) -> None:
    """Appends one JSON line in one write: the ranks share the file."""
    if path is not None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(fields) + "\n").encode())
        os.close(fd)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tensor-ranks", type=int, default=2, help="ranks that share a block; the others have shards")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--context", type=int, default=64, help="bytes that the model sees")
    parser.add_argument("--batch", type=int, default=4, help="sequences for each part of the data and step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--checkpoint-dir", type=Path, help="resume from the newest whole checkpoint there")
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS")
    parser.add_argument("--loss-log", type=Path, metavar="FILE", help="a line per rank and step; see compare_runs.py")
    parser.add_argument("--digest", type=Path, metavar="FILE", help="a line per rank at the end: sha256 over its state")
    args = parser.parse_args()
    if args.checkpoint_every and not args.checkpoint_dir:
        parser.error("--checkpoint-every needs --checkpoint-dir")
    return args


def main(writer: Callable[[Path], StorageWriter] = FileSystemWriter) -> None:
    """`writer`: makes what writes a checkpoint into a folder."""
    args = parse_args()
    text, _ = load_corpus()
    run = deadpool.join()
    if run.world_size % args.tensor_ranks:
        sys.exit(f"train_titan_style.py: {run.world_size} ranks cannot share blocks by {args.tensor_ranks}")
    data_ranks = run.world_size // args.tensor_ranks
    mesh = init_device_mesh(run.device.type, (data_ranks, args.tensor_ranks), mesh_dim_names=("dp", "tp"))
    part = mesh.get_local_rank("dp")
    model = build(args, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    training = Spread(model, optimizer, Whole(model), part, data_ranks, stages=1)
    scheduler = LambdaLR(optimizer, learning_rate_curve(10, args.steps))
    loader = StatefulDataLoader(
        Windows(text, args.context, part, data_ranks), batch_size=args.batch, generator=torch.Generator()
    )  # a generator of its own: a new iterator draws a seed
    batches = Batches(loader)
    saved = {"trained": Trained(model, optimizer), "scheduler": scheduler, f"batches{part}": batches}

    first = 0
    if args.checkpoint_dir and not run.joined_late:  # who takes over a rank in a running job gets its state from there
        first = newest(args.checkpoint_dir)
        if first:
            load(saved, checkpoint_id=args.checkpoint_dir / f"step-{first}")
    guard = run.protect(model=model, optimizer=optimizer, extra={"scheduler": scheduler, "batches": batches})

    def train_step(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = next(batches)
        loss = training.compute.gradients([(tokens.to(run.device), targets.to(run.device))])
        training.clip(args.clip_norm)
        optimizer.step()
        scheduler.step()
        return torch.tensor(loss, device=run.device)

    for step, loss in guard.run(train_step, start=first, until=args.steps):
        append_line(args.loss_log, rank=run.rank, step=step, loss=float(loss).hex())
        if (step + 1) % args.log_every == 0:
            dist.all_reduce(loss, group=mesh.get_group("dp"))
            if run.rank == 0:
                print(f"step {step + 1:5d}  loss {loss / data_ranks:.3f}  lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
        if args.checkpoint_every and (step + 1) % args.checkpoint_every == 0:
            save(saved, storage_writer=writer(args.checkpoint_dir / f"step-{step + 1}"))

    append_line(args.digest, rank=run.rank, digest=digest(model, optimizer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
