"""A training in three loops, with what people do between them: a schedule's step, an evaluation with all ranks, a file.

`--die PLACE STEP`: the last rank kills itself there, once: in a step, or between two loops. `--own-loop`: with begin, step and
finish instead of run.
"""

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from bodies import Model, batch
from growing import append
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import deadpool

EPOCH_STEPS = 4
EPOCHS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", nargs=2, action="append", default=[], metavar=("PLACE", "STEP"))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--own-loop", action="store_true")
    args = parser.parse_args()
    run = deadpool.join()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    torch.manual_seed(1 + run.rank)
    guard: deadpool.Guard = run.protect(model=model, optimizer=optimizer, extra={"schedule": schedule})

    def die(place: str, step: int) -> None:
        mark = Path(f"died-{place}-{step}")
        if [place, str(step)] in args.die and run.rank == run.world_size - 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def train_step(step: int) -> float:
        model.module.train()
        optimizer.zero_grad()
        inputs = batch(step, run.rank)
        loss = functional.mse_loss(model(inputs), inputs)
        torch.autograd.backward(loss)
        die("step", step)
        optimizer.step()
        return loss.item()

    def own_loop(until: int) -> Iterator[tuple[int, float]]:
        guard.begin(until=until)
        while True:
            while guard.next_step < until:
                with guard.step() as attempt:
                    loss = train_step(attempt.step)
                if attempt.completed:
                    yield attempt.step, loss
            if guard.finish():
                return

    @torch.no_grad()
    def evaluate() -> float:
        model.module.eval()
        inputs = batch(500, run.rank)
        loss = functional.mse_loss(model.module(inputs), inputs) + 0.01 * torch.rand(())  # its random numbers count as well
        dist.all_reduce(loss)
        return loss.item()

    for epoch in range(args.epochs):
        until = EPOCH_STEPS * (epoch + 1)
        for step, loss in own_loop(until) if args.own_loop else guard.run(train_step, until=until):
            append(Path("losses"), rank=run.rank, step=step, loss=loss.hex())
        schedule.step()
        die("between", until)
        value = evaluate()
        if not guard.catching_up:
            append(Path("losses"), rank=run.rank, step=1000 + until, loss=value.hex())
    append(Path("digests"), rank=run.rank, digest=str([value.sum().item() for value in model.state_dict().values()]))


if __name__ == "__main__":
    main()
