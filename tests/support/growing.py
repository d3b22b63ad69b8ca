"""A simple training for tests of odd things: its state may suddenly need more room, or be changed behind everybody's back.

Like examples/train_gpt.py it leaves a line per rank and step, and one per rank at the end.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import deadpool


class Record:
    """Goes into the metadata of each state."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.ballast = torch.zeros(0)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses, "ballast": self.ballast}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses, self.ballast = state["losses"], state["ballast"]


def append(path: Path, **fields: object) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, (json.dumps(fields) + "\n").encode())
    os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--grows-at", type=int, required=True)
    parser.add_argument("--grows-by", type=int, required=True, help="numbers of 4 bytes")
    parser.add_argument("--step-s", type=float, default=0.05, help="what a step takes as long as there is no file `hurry`")
    parser.add_argument("--slower-from", type=int, default=sys.maxsize, help="the step from which on it takes ten times as long")
    parser.add_argument("--flip", type=int, nargs=2, default=(-1, -1), metavar=("RANK", "STEP"), help="once: a bad memory cell")
    args = parser.parse_args()
    run = deadpool.join()
    if not run.joined_late:
        Path("store-port").write_text(os.environ["MASTER_PORT"])
    torch.manual_seed(0)
    print(f"rank {run.rank} is built by process {os.getpid()}", flush=True)
    model = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    record = Record()
    guard = run.protect(model=model, optimizer=optimizer, extra={"record": record})

    def train_step(step: int) -> float:
        if not Path("hurry").exists():
            time.sleep(args.step_s if step < args.slower_from else 10 * args.step_s)
        generator = torch.Generator().manual_seed(1000 * step + run.rank)
        inputs: Tensor = torch.randn(8, 16, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        torch.autograd.backward(loss)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if (run.rank, step) == tuple(args.flip) and not Path("flipped").exists():
            Path("flipped").touch()
            model.weight.data.view(torch.int32)[0, 0] ^= 1 << 20
        if step == args.grows_at:
            record.ballast = torch.full((args.grows_by,), float(run.rank))
        record.losses[step] = loss.item()
        return record.losses[step]

    for step, loss in guard.run(train_step, until=args.steps):
        append(Path("losses"), rank=run.rank, step=step, loss=loss.hex())
    total = hashlib.sha256()
    for value in (*model.parameters(), record.ballast):
        total.update(value.detach().numpy().tobytes())
    total.update(repr(record.losses).encode())
    append(Path("digests"), rank=run.rank, digest=total.hexdigest())


if __name__ == "__main__":
    deadpool.main(main)
