"""A training that knows nothing of deadpool: torch.distributed, a checkpoint on disk, and whoever starts it again.

A step takes --step-s: it sleeps for the most part, as a rank does whose GPU computes, and then takes its gradients' mean with all
other ranks. Each rank writes its pid to FOLDER/pids/RANK, and a line to FOLDER/loss.log for each step that it has completed.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pids, checkpoint = args.folder / "pids", args.folder / "checkpoint.pt"
    pids.mkdir(exist_ok=True)
    (pids / str(rank)).write_text(str(os.getpid()))

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    for step in range(done, args.steps):
        ends_s = time.monotonic() + args.step_s
        inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step * dist.get_world_size() + rank))
        loss = model(inputs).square().mean()
        time.sleep(max(0.0, ends_s - time.monotonic()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with (args.folder / "loss.log").open("a") as log:
            log.write(json.dumps({"rank": rank, "step": step, "loss": loss.item().hex()}) + "\n")
        if rank == 0 and (step + 1) % args.checkpoint_every == 0:
            partial = checkpoint.with_suffix(".partial")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": step + 1}, partial)
            partial.replace(checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
