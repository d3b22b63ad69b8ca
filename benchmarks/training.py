"""One protected rank of examples/train_gpt.py, as benchmarks train it: without evaluation, logs and files."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

import deadpool
from examples.train_gpt import build, draw, learning_rate_curve, load_corpus, parse_args

if TYPE_CHECKING:
    from deadpool.trainer_hooks.run import Run


def protected_training(options: list[str], steps: int) -> tuple["Run", Any, Callable[[int], None]]:
    """Joins the job and returns (run, guard, train_step) for so many steps; `options`: of train_gpt.py."""
    args = parse_args(options)
    text, _ = load_corpus()
    run = deadpool.join()
    model, optimizer = build(args, run.device, run.rank, run.world_size)
    scheduler = LambdaLR(optimizer, learning_rate_curve(args.warmup_steps, steps))
    guard = run.protect(model=model, optimizer=optimizer, extra={"scheduler": scheduler})

    def train_step(step: int) -> None:
        optimizer.zero_grad()
        tokens, targets = (part.to(run.device) for part in draw(text, f"{args.seed} {step} {run.rank}", args.batch, args.context))
        cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_norm)
        optimizer.step()
        scheduler.step()
        if run.device.type == "cuda":
            torch.cuda.synchronize()

    return run, guard, train_step
