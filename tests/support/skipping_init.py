"""A training whose joiners leave out the first values of a large parameter, and which draws random numbers that last after it.

skipping_init.py [copy]: and keeps a copy of the untrained model for itself
"""

import copy
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import deadpool

run = deadpool.join(skip_init=True)
torch.manual_seed(0)
layer = nn.Linear(1024, 1024)
nn.init.normal_(layer.weight, std=0.02)
model = nn.Sequential(layer, nn.Dropout(0.1))
reference = copy.deepcopy(model) if "copy" in sys.argv else nn.Identity()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters())
guard = run.protect(model=ddp, optimizer=optimizer)
data = torch.randn(64, 1024)  # by what the generator gives after the model: in no state
order = torch.randperm(64)


def train_step(step: int) -> float:
    batch = data[order.roll(step + run.rank)[:8]]
    optimizer.zero_grad()
    loss = (ddp(batch) - reference(batch)).square().mean()
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach())


for _ in guard.run(train_step, until=7):
    pass
