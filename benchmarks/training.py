"""One protected rank as benchmarks train it: of examples/train_gpt.py, without evaluation, logs and files, or of many tensors."""

import sys
import time
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

NUMBERS = 64  # of each tensor where there are many
COMPUTE_S = 0.1

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


def many_tensors(count: int) -> tuple["Run", Any, Callable[[int], None]]:
    """The same of a state of so many small tensors: parameters, and three for each that AdamW keeps. Computing is a wait."""
    run = deadpool.join()
    torch.manual_seed(0)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(NUMBERS)) for _ in range(count // 4)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    guard = run.protect(model=model, optimizer=optimizer)
    gradients, together = [torch.randn(NUMBERS) for _ in model], torch.ones(1)

    def train_step(step: int) -> None:
        time.sleep(COMPUTE_S)
        torch.distributed.all_reduce(together)
        for parameter, gradient in zip(model, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return run, guard, train_step
