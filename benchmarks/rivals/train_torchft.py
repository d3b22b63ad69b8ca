"""The training of examples/train_gpt.py under torchft: each rank is a replica group of its own, as in torchft's DDP example.

Same model, data, sizes and log. Two things differ because torchft has no others: the optimizer is whole on every rank (there is
no ZeRO across replica groups), and gradients are averaged by torchft's own DistributedDataParallel.
"""

import os
import random
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]
from torchft.checkpointing.pg_transport import PGTransport  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gpt import GPT, draw, learning_rate_curve, load_corpus
from train_gpt import append_line, parse_args

COLLECTIVE_TIMEOUT = timedelta(seconds=5)
QUORUM_TIMEOUT = timedelta(seconds=60)


def main() -> None:
    args = parse_args()
    rank, ranks = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    text, _ = load_corpus()
    torch.manual_seed(args.seed)
    model = GPT(layers=args.layers, heads=args.heads, width=args.width, context=args.context, dropout=args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    scheduler = LambdaLR(optimizer, learning_rate_curve(args.warmup_steps, args.steps))

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])

    group = ProcessGroupGloo(timeout=COLLECTIVE_TIMEOUT)
    manager = Manager(
        pg=group,
        min_replica_size=ranks,
        replica_id=f"group{rank}",
        timeout=QUORUM_TIMEOUT,
        state_dict=lambda: {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
        },
        load_state_dict=load,
        checkpoint_transport=PGTransport(group, timeout=QUORUM_TIMEOUT, device=torch.device("cpu")),
    )  # fmt: skip
    spread, stepper = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    while manager.current_step() < args.steps:
        step = manager.current_step()
        torch.manual_seed(args.seed + 1 + rank + ranks * step)  # torchft restores no RNG: each step makes its own
        random.seed(step)
        tokens, targets = draw(text, f"{args.seed} {step} {rank}", args.batch, args.context)
        stepper.zero_grad()
        loss = cross_entropy(spread(tokens).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        step, participates = manager.current_step(), manager.is_participating()  # a joiner learns its step here
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_norm)
        stepper.step()
        if manager.current_step() > step:  # committed
            scheduler.step()
            if participates:
                append_line(args.loss_log, rank=rank, step=step, loss=float(loss.item()).hex())
    manager.shutdown()


if __name__ == "__main__":
    main()
