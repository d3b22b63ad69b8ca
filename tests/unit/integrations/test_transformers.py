"""The Trainer of transformers goes back by some steps, is taken over by a new process, and ends as if nothing had happened."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from going_back import GoingBack
from torch import Tensor
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from deadpool.host.errors import ConfigError
from deadpool.integrations.transformers import ProtectedTrainer

LENGTH = 8


class Numbers(Dataset[Tensor]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Tensor:
        return (torch.arange(LENGTH) * (1 + index % 5) + index) % 32


def masked(pieces: list[Tensor]) -> dict[str, Tensor]:
    """Draws which places count, as collators for masked language models do."""
    inputs = torch.stack(pieces)
    labels = torch.where(torch.rand(inputs.shape) < 0.7, inputs, -100)
    return {"input_ids": inputs, "labels": labels}


class Seen(TrainerCallback):  # type: ignore[misc]
    """What a user's callback sees: each step's number and epoch, and the logs without times."""

    def __init__(self) -> None:
        self.steps: dict[int, list[Any]] = {}
        self.trainer: ProtectedTrainer

    def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        weights = sum(each.detach().double().sum().item() for each in self.trainer.model.parameters())
        row = [state.epoch, weights, self.trainer._tr_loss.item(), torch.rand(()).item()]
        assert self.steps.setdefault(state.global_step, row) == row


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if "runtime" not in name and "second" not in name} for row in history]


class Trained:
    def __init__(
        self, folder: Path, run: GoingBack, *callbacks: TrainerCallback, base: Any = ProtectedTrainer, **arguments: Any
    ) -> None:
        torch.manual_seed(0)
        shape = {"vocab_size": 32, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 1}
        model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
        args = TrainingArguments(
            output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, per_device_train_batch_size=2,
            gradient_accumulation_steps=2, logging_steps=2, num_train_epochs=3,
            **{"save_strategy": "no", "learning_rate": 0.01} | arguments,
        )  # fmt: skip
        self.seen = Seen()

        class Run(base):  # type: ignore[misc]
            joined = staticmethod(run.joined)

        self.trainer = self.seen.trainer = Run(
            model=model,
            args=args,
            train_dataset=Numbers(15),
            eval_dataset=Numbers(4),
            data_collator=masked,
            callbacks=[self.seen, *callbacks],
        )  # fmt: skip

    def train(self) -> "Trained":
        result = self.trainer.train()
        history = timeless(self.trainer.state.log_history)
        self.ended = [result.global_step, result.training_loss, history, torch.rand(()).item()]
        return self


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, GoingBack]:
    run = GoingBack()
    return Trained(tmp_path_factory.mktemp("straight"), run, eval_strategy="steps", eval_steps=3).train(), run


@pytest.mark.parametrize("back", [{0: 0}, {1: 1}, {3: 0, 4: 1}, {5: 2, 7: 3}, {8: 1}, {11: 3, GoingBack.END: 1}])
def test_steps_are_done_again(straight: tuple[Trained, GoingBack], back: dict[int, int], tmp_path: Path) -> None:
    again = Trained(tmp_path, GoingBack(back=back), eval_strategy="steps", eval_steps=3).train()
    assert again.ended == straight[0].ended
    assert again.seen.steps == straight[0].seen.steps


@pytest.mark.parametrize("at", [0, 1, 3, 4, 7, 11])
def test_a_new_process_takes_over(straight: tuple[Trained, GoingBack], at: int, tmp_path: Path) -> None:
    late = Trained(tmp_path, GoingBack(takes_over=straight[1].states[at]), eval_strategy="steps", eval_steps=3).train()
    assert late.ended == straight[0].ended
    assert late.seen.steps == {step: row for step, row in straight[0].seen.steps.items() if step > at}


def checkpoints(folder: Path) -> dict[str, str]:
    """Returns each of the Trainer's own checkpoints by name, with what it says of the training."""
    states = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("checkpoint-*/trainer_state.json")}
    for state in states.values():
        state["log_history"] = timeless(state["log_history"])
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"] or "").name
    return {name: json.dumps(state, sort_keys=True) for name, state in states.items()}


@pytest.mark.parametrize("back", [{}, {4: 1}, {6: 0, 8: 3}])
def test_its_own_checkpoints_and_early_stopping(back: dict[int, int], tmp_path: Path) -> None:
    arguments = {
        "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2,
        "load_best_model_at_end": True, "learning_rate": 0.3, "dataloader_num_workers": 0,
    }  # fmt: skip
    made = {}
    for name, run in (("straight", GoingBack()), ("back", GoingBack(back=back))):
        trained = Trained(tmp_path / name, run, EarlyStoppingCallback(2), **arguments).train()
        made[name] = (trained.ended, trained.seen.steps, checkpoints(tmp_path / name))
    assert made["back"] == made["straight"]
    assert made["straight"][0][0] < 12  # it has stopped early
    assert len(made["straight"][2]) == 2


class StopsEpochs(TrainerCallback):  # type: ignore[misc]
    """Ends each epoch after its second step, at which the epoch's number tells nothing of the step's."""

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.epoch % 1 >= 0.5


@pytest.mark.parametrize("at", [2, 3, 5])
def test_epochs_that_end_before_their_data_do(at: int, tmp_path: Path) -> None:
    run = GoingBack(back={3: 1})
    straight = Trained(tmp_path, run, StopsEpochs()).train()
    assert straight.ended[0] == 6
    late = Trained(tmp_path, GoingBack(takes_over=run.states[at]), StopsEpochs()).train()
    assert late.ended == straight.ended


class FailsOnce(ProtectedTrainer):
    """What a script may do with the values of a broken generation."""

    failed = False

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 4 and not self.failed:
            type(self).failed = True
            raise ZeroDivisionError("of made-up values")
        return super().training_step(*args, **kwargs)


def test_an_error_in_a_step_that_is_discarded_is_forgotten(straight: tuple[Trained, GoingBack], tmp_path: Path) -> None:
    again = Trained(tmp_path, GoingBack(back={4: 1}), base=FailsOnce, eval_strategy="steps", eval_steps=3).train()
    assert again.ended == straight[0].ended
    FailsOnce.failed = False
    with pytest.raises(ZeroDivisionError, match="of made-up values"):
        Trained(tmp_path, GoingBack(), base=FailsOnce).train()


def test_what_cannot_be_done_again_is_refused(tmp_path: Path) -> None:
    for arguments, reason in (
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"dataloader_persistent_workers": True, "dataloader_num_workers": 1}, "dataloader_persistent_workers"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Trained(tmp_path, GoingBack(), **arguments).train()
