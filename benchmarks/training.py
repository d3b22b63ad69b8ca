"""One protected rank of examples/train_gpt.py, as benchmarks train it: without evaluation, logs and files."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR

import deadpool

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from gpt import draw, learning_rate_curve, load_corpus
from gpt_parallel import spread
from train_gpt import parse_args

if TYPE_CHECKING:
    from deadpool.trainer_hooks.run import Run


def protected_training(options: list[str], steps: int) -> tuple["Run", Any, Callable[[int], None]]:
    """Joins the job and returns (run, guard, train_step) for so many steps; `options`: of train_gpt.py."""
    args = parse_args(options)
    text, _ = load_corpus()
    run = deadpool.join()
    training = spread(args, run.device, run.world_size)
    model, optimizer = training.model, training.optimizer
    scheduler = LambdaLR(optimizer, learning_rate_curve(args.warmup_steps, steps))
    guard = run.protect(model=model, optimizer=optimizer, extra={"scheduler": scheduler})

    def train_step(step: int) -> None:
        optimizer.zero_grad()
        key = f"{args.seed} {step} {training.data_index}"
        tokens, targets = (part.to(run.device) for part in draw(text, key, args.batch, args.context))
        training.compute.gradients([(tokens, targets)])
        training.clip(args.clip_norm)
        optimizer.step()
        scheduler.step()
        if run.device.type == "cuda":
            torch.cuda.synchronize()

    return run, guard, train_step
