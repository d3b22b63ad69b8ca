"""A training whose whole DDP is compiled: `compiled.py STEPS BACKEND`. A line per rank and step, and one per rank at the end."""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
from growing import append
from torch import Tensor, nn

import deadpool


def main() -> None:
    run = deadpool.join()
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
    model: Any = torch.compile(nn.parallel.DistributedDataParallel(layers), backend=sys.argv[2])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(1 + run.rank)
    guard = run.protect(model=model, optimizer=optimizer)

    def train_step(step: int) -> float:
        time.sleep(0.05)  # what a step of a real training takes
        generator = torch.Generator().manual_seed(1000 * step + run.rank)
        inputs: Tensor = torch.randn(8, 16, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss.item())

    for step, loss in guard.run(train_step, until=int(sys.argv[1])):
        append(Path("losses"), rank=run.rank, step=step, loss=loss.hex())
    total = hashlib.sha256()
    for value in model.parameters():
        total.update(value.detach().numpy().tobytes())
    append(Path("digests"), rank=run.rank, digest=total.hexdigest())


if __name__ == "__main__":
    main()
