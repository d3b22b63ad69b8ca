"""Lightning's Trainer goes back by some steps, is taken over by a new process, and ends as if nothing had happened."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from going_back import GoingBack
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric

from deadpool.host.errors import ConfigError
from deadpool.integrations.lightning import DeadpoolCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Lightning has advice for every small training
]


class Vectors(Dataset[Tensor]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Tensor:
        return torch.sin(torch.arange(6.0) * (index + 1))


def noisy(vectors: list[Tensor]) -> Tensor:
    """Augmentation that is drawn as the batch is."""
    return torch.stack(vectors) + 0.1 * torch.randn(len(vectors), 6)


class Module(LightningModule):  # type: ignore[misc]
    def __init__(self, seen: dict[int, list[Any]]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 6))
        self.mean = MeanMetric()
        self.seen = seen

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = (self.layers(batch) - batch).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.mean(loss.detach())
        self.log("mean", self.mean, on_epoch=True)
        if batch_idx % 3 == 2:  # not in every step
            self.log("third", loss.sqrt(), on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if not self.trainer.fit_loop._should_accumulate():
            weights = sum(each.detach().double().sum().item() for each in self.parameters())
            row = [self.current_epoch, weights, torch.rand(()).item()]
            assert self.seen.setdefault(self.global_step, row) == row

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("held_out", (self.layers(batch) - batch).square().mean() + 0.01 * torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "held_out"}}


class Fitted:
    """A whole training, and what is left of it."""

    def __init__(self, folder: Path, run: GoingBack, **arguments: Any) -> None:
        torch.manual_seed(0)
        self.seen: dict[int, list[Any]] = {}
        module = Module(self.seen)
        best = ModelCheckpoint(folder, "{step}", monitor="held_out", save_top_k=2, save_last=True)

        class Joined(DeadpoolCallback):
            joined = staticmethod(run.joined)

        chosen: dict[str, Any] = {"max_epochs": 3, "accumulate_grad_batches": 2, "val_check_interval": 4, **arguments}
        trainer = Trainer(
            accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder, callbacks=[best, EarlyStopping("held_out", patience=4), Joined()], **chosen,
        )  # fmt: skip
        trainer.fit(
            module,
            DataLoader(Vectors(17), batch_size=2, shuffle=True, collate_fn=noisy),
            DataLoader(Vectors(4), batch_size=2),
        )
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        saved = sorted(path.name for path in folder.glob("*.ckpt"))
        kept = {Path(path).name: float(score) for path, score in best.best_k_models.items()}
        rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
        self.ended = [trainer.global_step, trainer.current_epoch, metrics, saved, kept, rates, torch.rand(()).item()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fitted, GoingBack]:
    run = GoingBack()
    return Fitted(tmp_path_factory.mktemp("straight"), run), run


@pytest.mark.parametrize("back", [{0: 0}, {1: 1}, {3: 0, 4: 1}, {5: 2, 7: 3}, {9: 1}, {14: 3, GoingBack.END: 1}])
def test_steps_are_done_again(straight: tuple[Fitted, GoingBack], back: dict[int, int], tmp_path: Path) -> None:
    again = Fitted(tmp_path, GoingBack(back=back))
    assert again.ended == straight[0].ended
    assert again.seen == straight[0].seen


@pytest.mark.parametrize("at", [0, 1, 4, 5, 6, 8, 14])
def test_a_new_process_takes_over(straight: tuple[Fitted, GoingBack], at: int, tmp_path: Path) -> None:
    late = Fitted(tmp_path, GoingBack(takes_over=straight[1].states[at]))
    assert late.ended[:3] == straight[0].ended[:3]
    assert late.ended[4:] == straight[0].ended[4:]
    assert late.seen == {step: row for step, row in straight[0].seen.items() if step > at}


def test_what_cannot_be_done_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reload_dataloaders_every_n_epochs"):
        Fitted(tmp_path, GoingBack(), reload_dataloaders_every_n_epochs=1)
