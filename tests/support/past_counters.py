"""A training that writes to its tensors behind their version counters, and whose ranks part in the middle of it.

Like growing.py it leaves a line per rank and step, and one per rank at the end.
"""

import argparse
import hashlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
from growing import append
from torch import Tensor, nn

import deadpool

PARTS_AT = 8
STEP_S = 0.1  # what a step of a real training takes: an injected failure finds it under way


class Training(nn.Module):
    """`average`: of the weights, kept through .data. `residual`: zero on all ranks at first, each rank's own later."""

    residual: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.average = nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False)
        self.register_buffer("residual", torch.zeros(16))

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        if step >= PARTS_AT:
            self.residual = self.residual * 0.9 + inputs.mean(0)
        out: Tensor = self.inner(inputs) + 0.1 * self.residual
        return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    run = deadpool.join()
    torch.manual_seed(0)
    model = Training()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = run.protect(model=model, optimizer=optimizer)

    def train_step(step: int) -> float:
        time.sleep(STEP_S)
        for parameter in model.inner.parameters():
            parameter.data.clamp_(-0.5, 0.5)  # before optimizer.step, while the state is copied
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        optimizer.zero_grad()
        loss = (model(inputs, step) - inputs).square().mean()
        torch.autograd.backward(loss)
        for parameter in model.inner.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        for average, parameter in zip(model.average.parameters(), model.inner.parameters(), strict=True):
            average.data.mul_(0.9).add_(parameter.data, alpha=0.1)
            parameter.data = parameter.data * 0.999
        value: float = loss.item()
        return value

    for step, loss in guard.run(train_step, until=args.steps):
        append(Path("losses"), rank=run.rank, step=step, loss=loss.hex())
    total = hashlib.sha256()
    for value in (*model.parameters(), *model.buffers()):
        total.update(value.detach().numpy().tobytes())
    append(Path("digests"), rank=run.rank, digest=total.hexdigest())


if __name__ == "__main__":
    main()
