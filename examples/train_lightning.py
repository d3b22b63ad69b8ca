"""A small GPT trained with Lightning's Trainer; the data are the sources of this machine's Python.

    deadpool-launch --standalone --nnodes 2 --spares 1 examples/train_lightning.py --epochs 3
    torchrun --standalone --nproc-per-node 2 examples/train_lightning.py --epochs 3      # the same losses, unprotected

Without deadpool: leave deadpool.join() and DeadpoolCallback() out.
"""

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from gpt import GPT, load_corpus
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from train_gpt import append_line

import deadpool
from deadpool.integrations.lightning import DeadpoolCallback

CONTEXT = 32


class Spans(Dataset[Tensor]):
    """Pieces of a text, one after the other, each with the byte that follows."""

    def __init__(self, text: Tensor, length: int) -> None:
        self._text, self._length = text, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Tensor:
        return self._text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()


class LitGPT(LightningModule):
    """`step_loss`: of this rank's own batches in the step under way."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.gpt = GPT(layers=2, heads=2, width=32, context=CONTEXT, dropout=0.1)
        self.step_loss = 0.0

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = cross_entropy(self.gpt(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.step_loss += loss.item()
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        loss = cross_entropy(self.gpt(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        self.log("held_out", loss, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class LossLines(Callback):
    """Writes a line for each rank and step; see compare_runs.py."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Tensor, batch_idx: int) -> None:
        if batch_idx % trainer.accumulate_grad_batches == 0:
            pl_module.step_loss = 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Tensor, batch_idx: int) -> None:
        if not trainer.fit_loop._should_accumulate():
            append_line(self._path, rank=trainer.global_rank, step=trainer.global_step - 1, loss=pl_module.step_loss.hex())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pieces", type=int, default=92, help="of the text, in an epoch")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--eval-every", type=int, default=8, metavar="BATCHES")
    parser.add_argument("--patience", type=int, default=3, help="evaluations without a better loss, after which it stops")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--output", type=Path, default=Path("build/lightning"))
    parser.add_argument("--loss-log", type=Path, metavar="FILE")
    parser.add_argument("--digest", type=Path, metavar="FILE", help="a line per rank at the end: sha256 of weights and metrics")
    args = parser.parse_args()
    train_text, held_out = load_corpus()
    deadpool.join()

    seed_everything(0, verbose=False)
    model = LitGPT(args.lr)
    ranks, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    best = ModelCheckpoint(args.output, "{step}", monitor="held_out", save_top_k=2)
    trainer = Trainer(
        accelerator="auto", devices=local, num_nodes=ranks // local, strategy="ddp", max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate, gradient_clip_val=1.0, val_check_interval=args.eval_every,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[DeadpoolCallback(), LossLines(args.loss_log), EarlyStopping("held_out", patience=args.patience), best],
    )  # fmt: skip
    trainer.fit(
        model,
        DataLoader(Spans(train_text, args.pieces), batch_size=2, shuffle=True),
        DataLoader(Spans(held_out, 16), batch_size=4),
    )
    metrics = {name: float(value).hex() for name, value in sorted(trainer.callback_metrics.items())}
    if trainer.is_global_zero:
        print(f"step {trainer.global_step}", *(f"{name} {float.fromhex(each):.3f}" for name, each in metrics.items()))

    total = hashlib.sha256()
    for tensor in [*model.state_dict().values(), torch.get_rng_state()]:
        total.update(tensor.detach().cpu().numpy().tobytes())
    kept = sorted(Path(path).name for path in best.best_k_models)
    total.update(repr([trainer.global_step, trainer.current_epoch, metrics, kept]).encode())
    append_line(args.digest, rank=trainer.global_rank, digest=total.hexdigest())


if __name__ == "__main__":
    main()
