"""A training whose loop body does what people do there, for tests that kill a rank in the middle of each.

After each step the losses are averaged for the log, after some there is an evaluation or a checkpoint of the script's own; one
rank decides when to stop, and tells the others; then comes a test. A second model is trained in every fourth step only: its DDP
is in another condition than the first one's. `--die PLACE STEP`: the last rank kills itself there, once.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from growing import append
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import deadpool

EVALUATE_EVERY, SAVE_EVERY, STOP_STEP = 3, 5, 10


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.layers(inputs)
        return result


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for value in model.state_dict().values():
        total.update(value.numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--die", nargs=2, action="append", default=[], metavar=("PLACE", "STEP"))
    args = parser.parse_args()
    run = deadpool.join()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    critic = DistributedDataParallel(Model(), static_graph=True, bucket_cap_mb=0.0005)
    optimizer, second = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(critic.parameters())
    torch.manual_seed(1 + run.rank)
    guard = run.protect(model={"model": model, "critic": critic}, optimizer={"optimizer": optimizer, "second": second})

    def die(place: str, step: int) -> None:
        mark = Path(f"died-{place}-{step}")
        if [place, str(step)] in args.die and run.rank == run.world_size - 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def train_step(step: int) -> Tensor:
        model.module.train()
        optimizer.zero_grad()
        inputs = batch(step, run.rank)
        loss = functional.mse_loss(model(inputs), inputs)
        torch.autograd.backward(loss)
        optimizer.step()
        if step % 4 == 3:
            second.zero_grad()
            torch.autograd.backward(critic(inputs).square().mean())
            second.step()
        die("step", step)
        return loss.detach()

    @torch.no_grad()
    def evaluate(step: int) -> float:
        model.module.eval()
        inputs = batch(500, run.rank)
        loss = functional.mse_loss(model.module(inputs), inputs) + 0.01 * torch.rand(
            ()
        )  # the body's random numbers count as well
        die("evaluate", step)
        dist.all_reduce(loss)
        return loss.item()

    for step, loss in guard.run(train_step, until=args.steps):
        die("log", step)
        dist.all_reduce(loss)
        append(Path("losses"), rank=run.rank, step=step, loss=float(loss).hex())
        if step % EVALUATE_EVERY == 0:
            append(Path("losses"), rank=run.rank, step=1000 + step, loss=evaluate(step).hex())
        if step % SAVE_EVERY == 0:
            writer = FileSystemWriter(f"saved-{step}")
            die("save", step)
            save({"model": model.module.state_dict()}, storage_writer=writer)
        stop = [step == STOP_STEP if run.rank == 0 else None]
        dist.broadcast_object_list(stop, src=0)
        if stop[0]:
            break
    die("test", step)
    append(Path("losses"), rank=run.rank, step=2000, loss=evaluate(-1).hex())
    append(Path("digests"), rank=run.rank, digest=digest(model.module) + digest(critic.module))
    saved = {"model": Model().state_dict()}
    load(saved, checkpoint_id="saved-5")
    append(Path("digests"), rank=run.world_size + run.rank, digest=str({k: v.sum().item() for k, v in saved["model"].items()}))


if __name__ == "__main__":
    main()
