"""A training on four ranks; each pair of them has many groups of its own, as tensor and pipeline parallelism within a node have.

Every call of every group goes into the loss. `--die STEP`: the last rank kills itself there, once and when there is
the file `may-die`, while rank 0 is about to be in a call of a group of its pair, to which rank 1 comes only after a message from
the last rank.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bodies import Model, batch
from growing import append
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import deadpool

GROUPS = 16  # of each pair
STEPS = 16
BEFORE = GROUPS // 2  # so many are used before the message that rank 1 waits for


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", type=int, default=-1)
    args = parser.parse_args()
    run = deadpool.join()
    first = run.rank // 2 * 2
    made: list[Any] = [[dist.new_group([0, 1]), dist.new_group([2, 3])][run.rank // 2] for _ in range(GROUPS)]
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + run.rank)
    guard: deadpool.Guard = run.protect(model=model, optimizer=optimizer)

    def exchange(value: Tensor, group: Any) -> Tensor:
        """Each tells the other: first the one with the lower rank."""
        other, heard = 2 * first + 1 - run.rank, torch.zeros(())
        if run.rank == first:
            dist.send(value, other, group=group)
            dist.recv(heard, other, group=group)
        else:
            dist.recv(heard, other, group=group)
            dist.send(value, other, group=group)
        return heard

    def across(step: int) -> None:
        """Rank 0 tells the last one, and that rank 1."""
        token, mark = torch.zeros(()), Path("died")
        if run.rank == 0:
            dist.send(token, 3)
        elif run.rank == 3:
            dist.recv(token, 0)
            if step == args.die and not mark.exists():
                mark.touch()
                while not Path("may-die").exists():
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            dist.send(token, 1)
        elif run.rank == 1:
            dist.recv(token, 3)

    def train_step(step: int) -> float:
        optimizer.zero_grad()
        inputs = batch(step, run.rank)
        heard = torch.zeros(())
        for index, group in enumerate(made):
            if index == BEFORE:
                across(step)
            part = inputs.mean() * (index + 1)
            if index % 3 == 2:
                heard += exchange(part, group)
            else:
                dist.all_reduce(part, group=group)
                heard += part
        loss = functional.mse_loss(model(inputs), inputs) * (1 + heard / 100)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.item()

    for step, loss in guard.run(train_step, until=STEPS):
        append(Path("losses"), rank=run.rank, step=step, loss=loss.hex())
    append(Path("digests"), rank=run.rank, digest=str([value.sum().item() for value in model.state_dict().values()]))


if __name__ == "__main__":
    main()
