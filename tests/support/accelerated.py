"""A training that Accelerate has prepared, for tests of launchers that start each other: `accelerated.py STEPS`.

A line per rank and step, one per rank at the end, and one that says what Accelerate makes of where it was started.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from growing import append
from torch import nn

import deadpool


def main() -> None:
    run = deadpool.join()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
    torch.manual_seed(1 + run.rank)
    guard = run.protect(model=model, optimizer=optimizer)
    if not run.joined_late:
        state = accelerator.state
        print(json.dumps([run.world_size, accelerator.mixed_precision, state.dynamo_plugin.backend.value]), flush=True)

    def train_step(step: int) -> float:
        time.sleep(0.05)  # what a step of a real training takes
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = (model(inputs) - inputs).square().mean()
        accelerator.backward(loss)
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
