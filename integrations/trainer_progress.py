"""What a Trainer of transformers knows beside model, optimizer and scheduler: counters, sums, logs, its callbacks' states."""

import dataclasses
import json
from typing import Any

from transformers.trainer_callback import ExportableState


class TrainerProgress:
    """Registered as an extra."""

    _SUMS = (
        "_total_loss_scalar",
        "_globalstep_last_logged",
        "_initial_global_step",
        "_initial_num_input_tokens_seen",
        "current_flos",
    )

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._written: list[str] = []  # the lines of log_history, each made once

    def state_dict(self) -> dict[str, Any]:
        trainer, state = self._trainer, self._trainer.state
        lines = self._written = self._written[: len(state.log_history)]
        lines += [json.dumps(_timeless(row)) for row in state.log_history[len(lines) :]]
        return {
            "place": list(trainer.place),
            "loss": trainer._tr_loss.clone(),
            "sums": {name: getattr(trainer, name) for name in self._SUMS},
            "state": {name: value for name, value in vars(state).items() if name not in ("log_history", "stateful_callbacks")},
            "log": "\n".join(lines),
            "control": dataclasses.asdict(trainer.control),
            "callbacks": [each.state()["attributes"] for each in self._stateful()],
        }

    def load_state_dict(self, found: dict[str, Any]) -> None:
        trainer, state = self._trainer, self._trainer.state
        trainer.place, trainer._tr_loss = tuple(found["place"]), found["loss"].to(trainer._tr_loss.device)
        vars(trainer).update(found["sums"])
        vars(state).update(found["state"])
        vars(trainer.control).update(found["control"])
        self._written = found["log"].splitlines()
        rows, own = [json.loads(line) for line in self._written], state.log_history
        state.log_history = [own[i] if i < len(own) and _timeless(own[i]) == row else row for i, row in enumerate(rows)]
        for each, attributes in zip(self._stateful(), found["callbacks"], strict=True):
            vars(each).update(attributes)

    def _stateful(self) -> list[Any]:
        return [each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState)]


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    """Returns what a repeated step logs again."""
    return {name: value for name, value in row.items() if not name.endswith(("_runtime", "_per_second"))}
