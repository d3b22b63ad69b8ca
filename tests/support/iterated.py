"""A training over `guard.steps` and a loader that is shuffled and draws random numbers for its samples, in workers or without.

KIND: map | workers | persistent | iterable | stateful | stateful-workers. It writes the mean loss of every step to --loss-log
(when it is live) and to `all` (always), and a digest of what it holds at the end, generators included, to --digest.
"""

import argparse
import hashlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from growing import append
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

import deadpool

SAMPLES, BATCH = 44, 4


def sample(index: int) -> Tensor:
    """What the sample is, and what it is changed by: random numbers of each of the generators that a loader may use."""
    return torch.randn(8, generator=torch.Generator().manual_seed(index)) + 0.1 * torch.rand(8) + 0.1 * random.random()


class Samples(Dataset[Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return sample(index)


class Counted(Samples):
    """Remembers how many samples it has given, and gives others by that."""

    given = 0

    def __getitem__(self, index: int) -> Tensor:
        self.given += 1
        return sample(index) + self.given

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class Stream(IterableDataset[Tensor]):
    """Each worker of each rank has its share, in an order that is drawn."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        parts = worker.num_workers if worker else 1
        mine = range(dist.get_rank() * parts + (worker.id if worker else 0), SAMPLES, 2 * parts)
        for index in random.sample(mine, len(mine)):
            yield sample(index)


def loader_of(kind: str) -> Any:
    name, _, how = kind.partition("-")
    workers = 2 if name in ("workers", "persistent") or how == "workers" else 0
    if name == "iterable":
        return DataLoader(Stream(), batch_size=BATCH, num_workers=workers)
    samples = Samples()
    if name == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Counted(), batch_size=BATCH, shuffle=True, num_workers=workers)
    sampler: DistributedSampler[Tensor] = DistributedSampler(samples, num_replicas=dist.get_world_size(), rank=dist.get_rank())
    persistent = name == "persistent"
    return DataLoader(samples, batch_size=BATCH, sampler=sampler, num_workers=workers, persistent_workers=persistent)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--loss-log", type=Path, required=True)
    parser.add_argument("--digest", type=Path, required=True)
    parser.add_argument("--at-an-echo", choices=("raise", "break"), help="when a sum over the ranks is this rank's own number")
    args = parser.parse_args()
    run = deadpool.join()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(1 + run.rank)
    random.seed(run.rank)
    guard: deadpool.Guard = run.protect(model=model, optimizer=optimizer)
    steps = guard.steps(loader_of(args.kind), until=args.steps, accumulate=args.accumulate, rehearse=args.rehearse)
    for step, batch in steps:
        time.sleep(0.05)  # what a step of a real training takes
        optimizer.zero_grad()
        total = 0.0
        for inputs in batch if args.accumulate > 1 else [batch]:
            loss = functional.mse_loss(model(inputs), inputs)
            torch.autograd.backward(loss)
            total += loss.item()
        optimizer.step()
        mean = torch.tensor(total)
        dist.all_reduce(mean)
        if mean == torch.tensor(total):
            append(Path("echoes"), rank=run.rank, step=step, pid=os.getpid())
            if args.at_an_echo == "raise":
                raise ValueError("this cannot be")
            if args.at_an_echo == "break":
                break
        append(Path("all"), rank=run.rank, step=step, loss=float(mean).hex())
        if guard.live:
            append(args.loss_log, rank=run.rank, step=step, loss=float(mean).hex())
    content = hashlib.sha256()
    for value in (*model.state_dict().values(), torch.get_rng_state()):
        content.update(value.numpy().tobytes())
    append(args.digest, rank=run.rank, digest=content.hexdigest() + f" {random.random()}")


if __name__ == "__main__":
    main()
