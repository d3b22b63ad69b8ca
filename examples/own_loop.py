"""A training with a step loop of its own: begin, step and finish instead of guard.run. See deadpool.Guard.

deadpool-launch --standalone --nnodes 2 --spares 1 examples/own_loop.py --steps 30 --log losses
"""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import deadpool


def batch(step: int, rank: int) -> Tensor:
    """Data that depends on nothing but the step and the rank: an attempt may be made again."""
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--log", type=Path, help="a line for each rank and step")
    args = parser.parse_args()
    run = deadpool.join()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 16)).to(run.device))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(1 + run.rank)
    guard: deadpool.Guard = run.protect(model=model, optimizer=optimizer)

    guard.begin(until=args.steps)
    while True:
        while guard.next_step < args.steps:
            with guard.step() as attempt:
                inputs = batch(attempt.step, run.rank).to(run.device)
                optimizer.zero_grad()
                loss = mse_loss(model(inputs), inputs)
                torch.autograd.backward(loss)
                optimizer.step()
            if attempt.completed:
                print(f"rank {run.rank} step {attempt.step} loss {loss.item():.4f}", flush=True)
                write(args.log, rank=run.rank, step=attempt.step, loss=float(loss).hex())
        if guard.finish():
            break


def write(log: Path | None, **line: object) -> None:
    if log is not None:
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(line) + "\n").encode())
        os.close(fd)


if __name__ == "__main__":
    main()
