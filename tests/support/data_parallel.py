"""Plain data parallelism on a rank of each node, for tests in which ranks are excluded; and the same training by hand.

Every step logs the rank's loss, a digest of the parameters after it, and how many ranks and which mean of their numbers the rank
is told of. `--gather-from STEP`: from then on a step has an all_gather, which has no result without all ranks.
"""

import argparse
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from growing import append
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import deadpool

STEPS = 1_000_000  # no test goes so far
STEP_S = 0.05  # what a step of a real training takes: all that are done here are done again by hand
SIZE = 8


def model_of_it() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 16), nn.ReLU(), nn.Linear(16, 1))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(4, SIZE, generator=generator)
    return functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for value in model.parameters():
        total.update(value.detach().numpy().tobytes())
    return total.hexdigest()[:16]


def by_hand(steps: int, playing: Callable[[int], Sequence[int]]) -> dict[tuple[int, int], tuple[float, str]]:
    """Returns by (rank, step): loss and digest. `playing(step)`: the ranks over which the gradients' mean is taken."""
    model = model_of_it()
    optimizer = optimizer_of(model)
    found: dict[tuple[int, int], tuple[float, str]] = {}
    for step in range(steps):
        ranks, losses = playing(step), {}
        gradients = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for rank in ranks:
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            loss.backward()  # type: ignore[no-untyped-call]
            losses[rank] = loss.item()
            for total, parameter in zip(gradients, model.parameters(), strict=True):
                assert parameter.grad is not None
                total += parameter.grad / len(ranks)
        for total, parameter in zip(gradients, model.parameters(), strict=True):
            parameter.grad = total
        optimizer.step()
        found |= {(rank, step): (losses[rank], digest(model)) for rank in ranks}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gather-from", type=int, default=STEPS)
    args = parser.parse_args()
    run = deadpool.join()
    model = DistributedDataParallel(model_of_it())
    optimizer = optimizer_of(model)
    guard = run.protect(model=model, optimizer=optimizer)

    def train_step(step: int) -> dict[str, float | str]:
        time.sleep(STEP_S)
        optimizer.zero_grad()
        loss = loss_of(model, step, run.rank)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        count, mean = torch.ones(1, dtype=torch.int64), torch.tensor([float(run.rank)])
        dist.all_reduce(count)
        dist.all_reduce(mean)
        if step >= args.gather_from:
            dist.all_gather([torch.zeros(1) for _ in range(run.world_size)], torch.ones(1))
        return {"loss": loss.item(), "digest": digest(model), "count": int(count), "mean": mean.item() / run.world_size}

    for step, told in guard.run(train_step, until=STEPS):
        append(Path("steps"), rank=run.rank, step=step, **told)


if __name__ == "__main__":
    main()
