"""A small GPT-2, made from a config, trained with Hugging Face's Trainer; the data are the sources of this machine's Python.

    deadpool-launch --standalone --nnodes 2 --spares 1 examples/train_transformers.py --epochs 3
    torchrun --standalone --nproc-per-node 2 examples/train_transformers.py --epochs 3      # the same losses, unprotected

Without deadpool: import Trainer from transformers, and leave deadpool.join() out.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
from gpt import load_corpus
from torch import Tensor
from torch.utils.data import Dataset
from train_gpt import append_line
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

import deadpool
from deadpool.integrations.transformers import ProtectedTrainer as Trainer

CONTEXT = 32


class Pieces(Dataset[dict[str, Tensor]]):
    """Pieces of a text, one after the other."""

    def __init__(self, text: Tensor, length: int) -> None:
        self._text, self._length = text, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        piece = self._text[index * CONTEXT : (index + 1) * CONTEXT].long()
        return {"input_ids": piece, "labels": piece}


class LoggingTrainer(Trainer):
    """Keeps the loss of each rank's own batches, which the Trainer only logs as a mean."""

    step_loss = 0.0

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        self.step_loss += loss.item()
        return loss


class LossLog(TrainerCallback):
    """Writes a line for each rank and step; see compare_runs.py."""

    trainer: LoggingTrainer

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.step_loss = 0.0

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        append_line(self._path, rank=args.process_index, step=state.global_step - 1, loss=self.trainer.step_loss.hex())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--steps", type=int, default=-1, help="instead of --epochs")
    parser.add_argument("--pieces", type=int, default=112, help="of the text, in an epoch")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=0, help="checkpoints of the Trainer's own, in --output")
    parser.add_argument("--patience", type=int, default=3, help="evaluations without a better loss, after which it stops")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--output", type=Path, default=Path("build/transformers"))
    parser.add_argument("--loss-log", type=Path, metavar="FILE")
    parser.add_argument("--digest", type=Path, metavar="FILE", help="a line per rank at the end: sha256 of weights and logs")
    args = parser.parse_args()
    train_text, held_out = load_corpus()
    deadpool.join()

    torch.manual_seed(0)
    shape = {"vocab_size": 256, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    log = LossLog(args.loss_log)
    arguments = TrainingArguments(
        output_dir=str(args.output), per_device_train_batch_size=2, per_device_eval_batch_size=4, learning_rate=args.lr,
        num_train_epochs=args.epochs, max_steps=args.steps, gradient_accumulation_steps=args.accumulate,
        lr_scheduler_type="cosine", warmup_steps=4, logging_steps=3, eval_strategy="steps", eval_steps=args.eval_every,
        save_strategy="steps" if args.save_every else "no", save_steps=args.save_every or 500, save_total_limit=2,
        metric_for_best_model="eval_loss", disable_tqdm=True, report_to=[], use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = LoggingTrainer(
        model=model, args=arguments, train_dataset=Pieces(train_text, args.pieces), eval_dataset=Pieces(held_out, 16),
        callbacks=[EarlyStoppingCallback(args.patience), log],
    )  # fmt: skip
    log.trainer = trainer
    result = trainer.train()

    total = hashlib.sha256()
    for tensor in [*model.state_dict().values(), torch.get_rng_state()]:
        total.update(tensor.detach().cpu().numpy().tobytes())
    logged = [row.get("loss", row.get("eval_loss")) for row in trainer.state.log_history[:-1]]
    total.update(repr([result.global_step, result.training_loss, trainer.state.epoch, logged]).encode())
    append_line(args.digest, rank=arguments.process_index, digest=total.hexdigest())


if __name__ == "__main__":
    main()
