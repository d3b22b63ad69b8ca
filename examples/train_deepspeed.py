"""Trains the GPT with DeepSpeed: ZeRO-1 or ZeRO-2, accumulation, clipping, a schedule, bf16 with fp32 partitions.

    torchrun --standalone --nproc-per-node 4 examples/train_deepspeed.py --stage 2 --bf16
    deadpool-launch --standalone --nnodes 2 --nproc-per-node 2 --spares 1 examples/train_deepspeed.py --stage 2 --bf16

What DeadPool needs of it: join() before deepspeed.initialize(), protect() after it, and a train_step that makes all micro-steps
of one optimizer step, with data that depends on the step's number alone.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from gpt import GPT, draw, learning_rate_curve, load_corpus
from gpt_parallel import loss_of
from torch.optim.lr_scheduler import LambdaLR

import deadpool
from deadpool.integrations.deepspeed import protect


def append_line(path: Path | None, **fields: object) -> None:
    """Appends one JSON line in one write: the ranks share the file."""
    if path is not None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(fields) + "\n").encode())
        os.close(fd)


def digest(engine: Any) -> str:
    """Returns sha256 over the parameters, this rank's fp32 partitions and their state, and what the engine counts."""
    total = hashlib.sha256()
    inner = engine.optimizer.optimizer
    partitions = [each for group in inner.param_groups for each in group["params"]]
    kept = [inner.state[each][key] for each in partitions for key in ("exp_avg", "exp_avg_sq", "step")]
    for tensor in [*engine.module.parameters(), *partitions, *kept]:
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    total.update(repr((engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.get_lr())).encode())
    return total.hexdigest()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stage", type=int, default=2, help="of ZeRO: 1 or 2")
    parser.add_argument("--bf16", action="store_true", help="weights and gradients in bfloat16")
    parser.add_argument("--accumulate", type=int, default=2, metavar="N", help="micro-steps per step")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--context", type=int, default=64, help="bytes that the model sees")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and micro-step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--loss-log", type=Path, metavar="FILE", help="a line per rank and step; see compare_runs.py")
    parser.add_argument("--digest", type=Path, metavar="FILE", help="a line per rank at the end: sha256 over its state")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    text, _ = load_corpus()
    run = deadpool.join()
    deepspeed.init_distributed(verbose=False)
    torch.manual_seed(args.seed)
    model = GPT(layers=args.layers, heads=args.heads, width=args.width, context=args.context, dropout=0.1)
    parts = [[each for each in model.parameters() if (each.dim() > 1) is decayed] for decayed in (True, False)]
    optimizer = torch.optim.AdamW(
        [{"params": parts[0], "weight_decay": 0.1}, {"params": parts[1], "weight_decay": 0.0}], lr=args.lr
    )
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=LambdaLR(optimizer, learning_rate_curve(10, args.steps)),
        config={
            "train_micro_batch_size_per_gpu": args.batch,
            "gradient_accumulation_steps": args.accumulate,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": args.stage},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": args.bf16},
            "steps_per_print": 10**9,
        },
    )
    torch.manual_seed(args.seed + 1 + run.rank)  # for dropout
    guard = protect(engine)

    def train_step(step: int) -> float:
        total = 0.0
        for index in range(args.accumulate):
            tokens, targets = draw(text, f"{args.seed} {step}.{index} {run.rank}", args.batch, args.context)
            loss = loss_of(engine(tokens.to(engine.device)), targets.to(engine.device))
            engine.backward(loss)
            engine.step()
            total += loss.item()
        return float(total / args.accumulate)

    for step, loss in guard.run(train_step, until=args.steps):
        append_line(args.loss_log, rank=run.rank, step=step, loss=loss.hex())
        if run.rank == 0 and (step + 1) % args.log_every == 0:
            print(f"step {step + 1:5d}  loss {loss:.3f}  lr {engine.get_lr()[0]:.2e}", flush=True)

    append_line(args.digest, rank=run.rank, digest=digest(engine))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
