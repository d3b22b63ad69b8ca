"""A training that notes torchrun's variables as each of its processes sees them, after join() and at the end."""

import argparse
import os
import time
from pathlib import Path

import torch
from growing import append
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import deadpool

NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
    "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS",
)  # fmt: skip


def note(when: str) -> None:
    append(Path("variables"), when=when, **{name: os.environ.get(name) for name in NAMES})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    run = deadpool.join()
    note("joined late" if run.joined_late else "joined")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = run.protect(model=model, optimizer=optimizer)

    def train_step(step: int) -> float:
        time.sleep(0.05)  # what a step of a real training takes
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), float(step))).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    for _ in guard.run(train_step, until=arguments.steps):
        pass
    note("ended")


if __name__ == "__main__":
    main()
