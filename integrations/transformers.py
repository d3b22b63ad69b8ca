"""The Trainer of Hugging Face transformers, protected. What a script changes:

    from deadpool.integrations.transformers import ProtectedTrainer as Trainer
    deadpool.join()  # before TrainingArguments(...), which would initialise torch.distributed

What the Trainer does from one step's batches to the end of its optimizer's and scheduler's step is a step; all that follows
(on_step_end of other callbacks, logging, evaluation, its own checkpoints) is the loop body, which sees complete steps only. Where
a recovery leads elsewhere, the Trainer's loop over an epoch is left and entered again at the next step.
"""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate import skip_first_batches
from accelerate.data_loader import DataLoaderDispatcher
from transformers import Trainer, TrainerCallback

import deadpool
from deadpool.integrations.fetched import Fetched
from deadpool.integrations.stepping import Stepping
from deadpool.integrations.trainer_progress import TrainerProgress

_ELSEWHERE = "deadpool"  # stands for the checkpoint that the Trainer resumes from, where a recovery enters an epoch


class ProtectedTrainer(Trainer):
    """Protects one call of train(). Beside another Trainer it comes first: `class Mine(ProtectedTrainer, SFTTrainer)`.

    ConfigError: deadpool.join() was not called, or the arguments ask for what cannot be done again.
    """

    joined = staticmethod(deadpool.joined)
    guard: deadpool.Guard | None = None
    control: Any
    place: tuple[int, int]  # (epoch, optimizer step in it) of the next step

    def _run_epoch(self, **how: Any) -> None:
        """Runs this epoch and all that follow."""
        guard = self.guard or self._protect(how)
        while True:
            epoch, update = self.place
            done = {"epochs_trained": epoch, "steps_trained_in_current_epoch": update * self.args.gradient_accumulation_steps}
            try:
                super()._run_epoch(**{**how, **done, "epoch": epoch, "resume_from_checkpoint": _ELSEWHERE})
            except Exception as error:
                if not self.stepping.discards(error):
                    raise
                continue
            if not self.control.should_training_stop and epoch + 1 < self.state.num_train_epochs:
                self.place = (epoch + 1, 0)
                self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
            elif guard.finish():
                self.control.should_training_stop = True
                return
            elif self.state.global_step > guard.next_step:  # not recovered yet, for want of a rehearsal
                self.place, self.control.should_training_stop = self._last_place, False

    def _protect(self, how: dict[str, Any]) -> deadpool.Guard:
        """Begins, with S_start in the process: as the script or the Trainer's own checkpoint has made it, or from ours."""
        self._loader, run = how["train_dataloader"], self.joined()
        for reason in _refused(self.args, self._loader):
            run.refuse(reason)
        self.place = self._last_place = (
            how["epoch"],
            how["steps_trained_in_current_epoch"] // self.args.gradient_accumulation_steps,
        )
        if how["resume_from_checkpoint"] is not None:
            super()._load_rng_state(how["resume_from_checkpoint"])
        self.args.ignore_data_skip = False  # else an epoch cannot be entered within
        self.callback_handler.callbacks.insert(0, _StepEnd(self))
        self._fetched = Fetched(self._open)
        extra = {"scheduler": self.lr_scheduler, "trainer": TrainerProgress(self), "batches": self._fetched}
        if self.accelerator.scaler is not None:
            extra["scaler"] = self.accelerator.scaler
        self.guard = run.protect(model=self.model_wrapped, optimizer=self.optimizer, extra=extra)
        self.stepping = Stepping(self.guard)
        self.guard.begin(start=self.state.global_step, until=self.state.max_steps)
        return self.guard

    def _open(self, epoch: int, batch: int) -> Iterator[Any]:
        """Returns an iterator over the batches of an epoch from this one on."""
        below = getattr(getattr(self._loader, "batch_sampler", None), "batch_sampler", None)  # which accelerate may not reach
        for each in filter(lambda it: hasattr(it, "set_epoch"), (self._loader, below)):
            each.set_epoch(epoch)
        return iter(self._loader if batch == 0 else skip_first_batches(self._loader, batch))

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        epoch, update = self._last_place = self.place
        at = (epoch, update * self.args.gradient_accumulation_steps)
        batches = self._fetched.take(at, num_batches, fresh=epoch_iterator if update == 0 else None)
        if not batches:  # the epoch has fewer than was said
            return [], None
        self.stepping.begin()
        self._fetched.begun()
        return batches, self._get_num_items_in_batch(batches, device)

    def _load_rng_state(self, checkpoint: str) -> None:
        if checkpoint != _ELSEWHERE:
            super()._load_rng_state(checkpoint)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if self.guard is None and self.joined().joined_late:
            return {}  # eval_on_start: its predecessor has done it
        metrics: dict[str, float] = super()._evaluate(*args, **kwargs)
        return metrics


class _StepEnd(TrainerCallback):
    """The first to hear of the end of a step."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.stepping.completed()
        epoch, update = self._trainer.place
        self._trainer.place = (epoch, update + 1)


def _refused(args: Any, loader: Any) -> Iterator[str]:
    """Yields why these arguments cannot be protected, and what to give instead."""
    if args.auto_find_batch_size:
        yield "auto_find_batch_size=True begins the training again by itself; give the batch size"
    if args.deepspeed:
        yield "DeepSpeed in the Trainer keeps a state of its own; use deadpool.integrations.deepspeed and a loop of the script's"
    if args.dataloader_persistent_workers:
        yield "dataloader_persistent_workers=True: what such workers draw depends on all epochs before; leave it out"
    if isinstance(loader, DataLoaderDispatcher):
        yield "rank 0 reads the data for all ranks; pass TrainingArguments(accelerator_config={'dispatch_batches': False})"
    if getattr(loader, "synchronized_generator", None) is not None:
        yield "rank 0 sends its loader's generator; pass TrainingArguments(accelerator_config={'use_seedable_sampler': True})"
