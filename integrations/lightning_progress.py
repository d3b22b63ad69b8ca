"""What Lightning's Trainer knows beside model, optimizers and schedulers: counters, what was logged, its callbacks' states."""

from collections.abc import Iterator
from typing import Any

from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric

_LOGGED = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics", "_first_loop_iter", "_current_fx")
_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "dataloader_idx")
_METRIC = ("_update_count", "_computed", "_forward_cache")


class LightningProgress:
    """Registered as an extra. `last`: the state that was captured last."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.last: dict[str, Any] = {}
        self._files = [Files(trainer, each) for each in trainer.callbacks if isinstance(each, ModelCheckpoint)]

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        loops = trainer.fit_loop.state_dict()
        loops["state_dict"].pop("combined_loader", None)  # Fetched knows the place
        self.last = {
            "loops": loops,
            "stop": trainer.should_stop,
            "callbacks": {each.state_key: each.state_dict() for each in trainer.callbacks},
            "files": [each.state_dict() for each in self._files],
            "logged": {name: getattr(trainer._logger_connector, name) for name in _LOGGED},
            "metrics": {path: _state_of(metric) for path, metric in self._metrics()},
            "results": {key: _described(result) for key, result in trainer.fit_loop.epoch_loop._results.items()},
        }
        return self.last

    def load_state_dict(self, found: dict[str, Any]) -> None:
        trainer, loop = self._trainer, self._trainer.fit_loop
        found = move_data_to_device(found, trainer.strategy.root_device)
        loop.load_state_dict(found["loops"])
        for each in (loop, loop.epoch_loop, loop.epoch_loop.automatic_optimization, loop.epoch_loop.manual_optimization):
            each.on_iteration_done()  # nothing is to be restarted: the loop goes on
        loop.epoch_loop.val_loop.on_iteration_done()
        trainer.should_stop = found["stop"]
        for each, state in zip(self._files, found["files"], strict=True):
            each.load_state_dict(state)
        for each in trainer.callbacks:
            each.load_state_dict(found["callbacks"][each.state_key])
        vars(trainer._logger_connector).update(found["logged"])
        metrics = dict(self._metrics())
        for path, state in found["metrics"].items():
            _load(metrics[path], state)
        results = loop.epoch_loop._results
        for key in results.keys() - found["results"].keys():
            del results[key]
        for key, row in found["results"].items():
            if key not in results:
                results[key] = self._made(row, metrics)
            _load(results[key], row["state"])
            results[key].has_reset = row["has_reset"]

    def _metrics(self) -> Iterator[tuple[str, Metric]]:
        for path, module in self._trainer.lightning_module.named_modules():
            if isinstance(module, Metric):
                yield path, module

    def _made(self, row: dict[str, Any], metrics: dict[str, Metric]) -> _ResultMetric:
        should, rank_zero_only = row["sync"]
        meta = _Metadata(**row["meta"], reduce_fx=row["reduce"], metric_attribute=row["attribute"])
        meta.sync = _Sync(_should=should, fn=self._trainer.strategy.reduce, rank_zero_only=rank_zero_only)
        made = _ResultMetric(meta, row["is_tensor"])
        if not row["is_tensor"]:
            made.value = metrics[row["attribute"]]
        return made


class Files:
    """The files that lay there, or that a ModelCheckpoint has written in steps that count.

    What a discarded step has written is written over when that step is done again, not beside it under another name.
    """

    _NAMES = ("current_score", "_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation", "dirpath")

    def __init__(self, trainer: Any, checkpoint: Any) -> None:
        self._checkpoint, self._save = checkpoint, checkpoint._save_checkpoint
        files, folder = checkpoint._fs, checkpoint.dirpath
        self._known: list[str] = files.find(folder) if trainer.is_global_zero and folder and files.isdir(folder) else []
        checkpoint._save_checkpoint, checkpoint.file_exists = self._saved, self._exists

    def state_dict(self) -> dict[str, Any]:
        return {"known": self._known, "itself": {name: getattr(self._checkpoint, name) for name in self._NAMES}}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        self._known = found["known"]
        vars(self._checkpoint).update(found["itself"])

    def _saved(self, trainer: Any, path: str) -> None:
        self._save(trainer, path)
        self._known = [*self._known, self._checkpoint._fs._strip_protocol(str(path))]

    def _exists(self, path: str, trainer: Any) -> bool:
        files = self._checkpoint._fs
        is_there = trainer.is_global_zero and files.exists(path) and files._strip_protocol(str(path)) in self._known
        return bool(trainer.strategy.reduce_boolean_decision(is_there, all=False))


def _described(result: Any) -> dict[str, Any]:
    return {
        "meta": {name: getattr(result.meta, name) for name in _META},
        "reduce": result.meta.reduce_fx.__name__,
        "attribute": result.meta.metric_attribute,
        "sync": [result.meta.sync.should, result.meta.sync.rank_zero_only],
        "is_tensor": result.is_tensor,
        "has_reset": result.has_reset,
        "state": _state_of(result),
    }


def _state_of(metric: Any) -> dict[str, Any]:
    return {name: getattr(metric, name) for name in (*metric._defaults, *_METRIC)}


def _load(metric: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(metric, name, value)
