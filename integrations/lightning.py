"""Lightning's Trainer, protected. What a script changes:

    deadpool.join()  # before trainer.fit(), which would initialise torch.distributed
    trainer = Trainer(..., callbacks=[DeadpoolCallback(), ...])  # from deadpool.integrations.lightning

What the Trainer does from an optimizer step's first batch to the end of its schedulers' steps is a step; all that follows (other
callbacks' and the module's on_train_batch_end, loggers, validation, checkpoints, the ends of epochs) is the loop body, which sees
complete steps only. Where a recovery leads elsewhere, the Trainer's loops are left and entered again at the next step.
"""

import sys
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DeepSpeedStrategy

import deadpool
from deadpool.integrations.lightning_feed import Feed
from deadpool.integrations.lightning_progress import LightningProgress
from deadpool.integrations.stepping import Stepping, WentElsewhereError


class DeadpoolCallback(Callback):
    """Protects one call of trainer.fit(). ConfigError: deadpool.join() was not called, or a step could not be done again."""

    joined = staticmethod(deadpool.joined)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            trainer.callbacks = [self, *(each for each in trainer.callbacks if each is not self)]  # the first to hear of steps
            trainer.fit_loop.__class__, trainer.fit_loop.epoch_loop.__class__ = ProtectedFitLoop, ProtectedEpochLoop
            trainer.fit_loop.joined = self.joined()
            if self.joined().joined_late:
                trainer.num_sanity_val_steps = 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.fit_loop._should_accumulate():
            trainer.fit_loop.stepping.completed()


class ProtectedFitLoop(_FitLoop):
    """The loop over epochs; it is entered again, within an epoch or before one, as the state says."""

    joined: deadpool.Run
    guard: deadpool.Guard | None = None
    stepping: Stepping
    feed: Feed | None = None
    goes_on = False  # in the middle of an epoch, which it has not begun itself

    def run(self) -> None:
        while True:
            try:
                super().run()
                return
            except Exception as error:
                if self.guard is None or not self.stepping.discards(error):
                    raise
            assert self.feed is not None
            self.feed.forget()
            self.goes_on = self._is_within_epoch

    @property
    def _data_fetcher(self) -> Feed | None:
        return self.feed

    @_data_fetcher.setter
    def _data_fetcher(self, fetcher: Any) -> None:
        self.feed = None if fetcher is None else Feed(self, fetcher)

    def on_run_start(self) -> None:
        if self.guard is None:
            super().on_run_start()
            self._protect()

    def on_advance_start(self) -> None:
        if not self.goes_on:
            super().on_advance_start()

    def on_run_end(self) -> None:
        assert self.guard is not None
        if not self.guard.finish():
            if self.epoch_loop.global_step > self.guard.next_step:  # not recovered yet, for want of a rehearsal
                self.progress.load_state_dict(self.progress.last)
            raise WentElsewhereError
        super().on_run_end()

    def _protect(self) -> None:
        trainer, run = self.trainer, self.joined
        assert self.feed is not None
        for reason in _refused(trainer, self.feed.fetcher):
            run.refuse(reason)
        if self.restarting and self._is_within_epoch:  # from a checkpoint of Lightning's
            _TrainingEpochLoop.reset(self.epoch_loop)
            self.epoch_loop.on_iteration_done()
        self.progress = LightningProgress(trainer)
        extra: dict[str, Any] = {"progress": self.progress, "batches": self.feed.fetched_steps}
        extra |= {f"scheduler{i}": each.scheduler for i, each in enumerate(trainer.lr_scheduler_configs)}
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            extra["scaler"] = scaler
        optimizers = {f"optimizer{i}": each for i, each in enumerate(trainer.optimizers)}
        self.guard = run.protect(model=trainer.model, optimizer=optimizers, extra=extra)
        self.stepping = Stepping(self.guard)
        self.guard.begin(start=self.epoch_loop.global_step, until=sys.maxsize)
        self.goes_on = self._is_within_epoch

    @property
    def _is_within_epoch(self) -> bool:
        return bool(self.epoch_progress.current.started > self.epoch_progress.current.processed)


class ProtectedEpochLoop(_TrainingEpochLoop):
    """The loop over an epoch's batches."""

    def reset(self) -> None:
        if not self.trainer.fit_loop.goes_on:
            super().reset()

    def on_run_start(self, data_fetcher: Any) -> None:
        if not self.trainer.fit_loop.goes_on:
            super().on_run_start(data_fetcher)
        self.trainer.fit_loop.goes_on = False

    def _broadcast_sigterm_tensor(self) -> None:
        """Before each batch all ranks ask rank 0 whether it was told to end. Here nobody is: the launcher ends them together."""
        if not self.trainer.fit_loop.joined.protected:
            super()._broadcast_sigterm_tensor()


def _refused(trainer: Any, fetcher: Any) -> Iterator[str]:
    """Yields why this training cannot be protected, and what to do instead."""
    if isinstance(fetcher, _DataLoaderIterDataFetcher):
        yield "training_step(dataloader_iter) draws its batches by itself; let it take (batch, batch_idx)"
    if isinstance(trainer.strategy, DeepSpeedStrategy):
        yield "DeepSpeedStrategy keeps a state of its own; use deadpool.integrations.deepspeed and a loop of the script's"
    if trainer.reload_dataloaders_every_n_epochs:
        yield "reload_dataloaders_every_n_epochs: a loader made anew cannot be put where another one was; leave it out"
    if any(getattr(each, "persistent_workers", False) for each in fetcher.combined_loader.flattened):
        yield "persistent_workers=True: what such workers draw depends on all epochs before; leave it out"
