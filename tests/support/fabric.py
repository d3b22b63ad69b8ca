"""A training with Lightning Fabric, whose loop is the script's own: nothing but join, protect and run.

--plain: without these three, the same training.
"""

import argparse
import hashlib
import os
from pathlib import Path

import torch
from growing import append
from lightning.fabric import Fabric
from torch import nn
from torch.nn import functional

import deadpool


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--loss-log", type=Path, required=True)
    parser.add_argument("--digest", type=Path, required=True)
    args = parser.parse_args()
    if not args.plain:
        run = deadpool.join()
    ranks, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    fabric = Fabric(accelerator="cpu", devices=local, num_nodes=ranks // local, strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8))
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
    torch.manual_seed(1 + fabric.global_rank)

    def train_step(step: int) -> float:
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + fabric.global_rank))
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), inputs)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        return loss.item()

    steps = enumerate(map(train_step, range(args.steps)))
    if not args.plain:
        steps = run.protect(model=model, optimizer=optimizer).run(train_step, until=args.steps)  # type: ignore[assignment]
    for step, loss in steps:
        append(args.loss_log, rank=fabric.global_rank, step=step, loss=loss.hex())
    content = hashlib.sha256()
    for value in (*module.state_dict().values(), torch.get_rng_state()):
        content.update(value.numpy().tobytes())
    append(args.digest, rank=fabric.global_rank, digest=content.hexdigest())


if __name__ == "__main__":
    main()
