"""Trains a small GPT with Hugging Face Accelerate: a prepared loader, accumulation, a schedule, bf16.

    python examples/train_accelerate.py --steps 40
    torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py --steps 40
    deadpool-launch --standalone --nnodes 2 --nproc-per-node 2 --spares 1 examples/train_accelerate.py --steps 40

What makes it survive its nodes: join(), protect(), and the loop over guard.steps(). Needs the extra `accelerate`.
"""

import argparse
import gc
import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from gpt import BYTES, GPT, learning_rate_curve, load_corpus
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import deadpool
from deadpool.integrations.accelerate import protect

CONTEXT, EXCERPTS = 32, 96  # few excerpts: even a short run is several epochs


class Excerpts(Dataset[Tensor]):
    """Pieces of a text, CONTEXT + 1 bytes each: the inputs, and one more for the targets."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return EXCERPTS

    def __getitem__(self, index: int) -> Tensor:
        return self.text[1000 * index : 1000 * index + CONTEXT + 1].long()


def write(path: Path | None, **line: object) -> None:
    if path is not None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(line) + "\n").encode())
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=2, help="batches per step")
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--loss-log", type=Path, metavar="FILE", help="a line per rank and step")
    parser.add_argument("--digest", type=Path, metavar="FILE", help="a line per rank at the end")
    args = parser.parse_args()
    text, _ = load_corpus()

    deadpool.join()
    train(args, text)
    gc.collect()  # without DDP: freeing a Gloo group with it can wait for ever for one of Gloo's threads (torch 2.13)
    dist.destroy_process_group()


def train(args: argparse.Namespace, text: Tensor) -> None:
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=args.accumulate,
        mixed_precision="bf16" if args.bf16 else "no",
    )
    torch.manual_seed(0)
    model = GPT(layers=2, heads=2, width=32, context=CONTEXT, dropout=0.1, bf16=args.bf16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = LambdaLR(optimizer, learning_rate_curve(4, args.steps * accelerator.num_processes))
    loader = DataLoader(Excerpts(text), batch_size=2, shuffle=True, num_workers=args.workers)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    torch.manual_seed(1 + accelerator.process_index)  # for dropout
    guard = protect(accelerator, model, optimizer, loader, scheduler)

    for step, batches in guard.steps(until=args.steps):
        total = 0.0
        for batch in batches if args.accumulate > 1 else [batches]:
            with accelerator.accumulate(model):
                logits = model(batch[:, :-1])
                loss = cross_entropy(logits.reshape(-1, BYTES), batch[:, 1:].reshape(-1))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                total += loss.item() / args.accumulate
        if guard.live:
            write(args.loss_log, rank=accelerator.process_index, step=step, loss=total.hex())
            if accelerator.is_main_process and (step + 1) % 10 == 0:
                print(f"step {step + 1:4d}  loss {total:.3f}  lr {scheduler.get_last_lr()[0]:.2e}", flush=True)

    content = hashlib.sha256()
    for value in (*model.state_dict().values(), torch.get_rng_state()):
        content.update(value.cpu().numpy().tobytes())
    write(args.digest, rank=accelerator.process_index, digest=content.hexdigest())


if __name__ == "__main__":
    main()
