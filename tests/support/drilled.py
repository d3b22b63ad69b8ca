"""A small training for the drill, with the faults that are named: things that its step depends on and that are in no state.

drilled.py [generator] [iterator] [attribute] [optimizer] [patience] [file]: the last is opened for writing, whether or not the
process joins late
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

import deadpool

FAULTS = sys.argv[1:]
run = deadpool.join()
torch.manual_seed(0)


class Model(nn.Module):
    """With `attribute`: what it gives depends on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, batch: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(batch)
        return result * (1 + self.calls / 100) if "attribute" in FAULTS else result


class Counting(torch.optim.SGD):
    """With `optimizer`: its steps get smaller by a counter of its own."""

    steps = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.steps = self.steps + 1
        if "optimizer" in FAULTS:
            self.param_groups[0]["lr"] = 0.1 / self.steps
        super().step()


metrics = open(f"metrics-{run.rank}.csv", "w") if "file" in FAULTS else None  # noqa: SIM115
model = Model()
optimizer = Counting(model.parameters(), lr=0.1)
source = torch.Generator().manual_seed(run.rank)
numbers = iter(DataLoader(range(100)))  # type: ignore[arg-type]
guard = run.protect(model=model, optimizer=optimizer)


def train_step(step: int) -> float:
    optimizer.zero_grad()
    generator = source if "generator" in FAULTS else torch.Generator().manual_seed(100 * step + run.rank)
    batch = torch.randn(8, 4, generator=generator)
    if "iterator" in FAULTS:
        batch = batch + next(numbers)
    loss = (model(batch) - batch.roll(1, 1)).square().mean()
    torch.autograd.backward(loss)
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
    optimizer.step()
    return float(loss.item())


patience = 0
for _ in guard.run(train_step, until=8):
    if "patience" in FAULTS:
        patience += 1
        if patience > 15:
            break
