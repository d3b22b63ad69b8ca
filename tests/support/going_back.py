"""A run for the integrations' tests, in one process: steps are discarded as it is told, and a process takes over at a state.

What is captured and restored is what a protected rank would (trainer_hooks/state); the groups, vaults and peers are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.loop import Attempt
from deadpool.trainer_hooks.state.items import Held
from deadpool.trainer_hooks.state.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class Captured:
    """S_step."""

    step: int
    held: list[Held]
    sources: list[Tensor]
    meta: dict[str, Any]


class GoingBack:
    """`back`: step -> by how many steps all go back when that step is at its end for the first time; `END`: at the finish.

    `takes_over`: the state from which this process goes on, after a rehearsal of two steps; None: it begins.
    """

    END = -1

    def __init__(self, *, back: Mapping[int, int] | None = None, takes_over: Captured | None = None) -> None:
        self.joined_late = takes_over is not None
        self.rank, self.world_size, self.protected = 0, 1, True
        self.next_step = 0
        self.states: dict[int, Captured] = {}
        self._back, self._takes_over = dict(back or {}), takes_over
        self._rehearsals = 2 if takes_over is not None else 0
        self._state: TrainingState

    def joined(self) -> Any:
        """In the place of deadpool.joined()."""
        return self

    def refuse(self, reason: str) -> NoReturn:
        raise ConfigError(reason)

    def protect(
        self, *, model: nn.Module, optimizer: Optimizer | Mapping[str, Optimizer], extra: Mapping[str, Any]
    ) -> "GoingBack":
        optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
        self._state = TrainingState(models={"model": model}, optimizers=optimizers, extra=extra)
        return self

    # ------------------------------------------------------------ as a guard

    def begin(self, *, start: int, until: int) -> None:
        if self._takes_over is not None:
            start = self._takes_over.step
        else:
            self._capture(start)
        self.next_step = start

    def step(self) -> Attempt:
        return Attempt(self, self.next_step)

    def begin_attempt(self, step: int) -> None:
        if not self._rehearsals:
            self._capture(step)

    def end_attempt(self, step: int, error: Exception | None) -> tuple[bool, bool]:
        if self._rehearsals:
            self._rehearsals -= 1
            if not self._rehearsals:
                assert self._takes_over is not None
                self._restore(self._takes_over)
            return False, error is not None
        if step in self._back:
            self._restore(self.states[max(min(self.states), step - self._back.pop(step))])
            return False, False
        if error is None:
            self.next_step = step + 1
        return error is None, error is not None

    def finish(self) -> bool:
        if self.END not in self._back:
            return True
        self._restore(self.states[self.next_step - self._back.pop(self.END)])
        return False

    def _capture(self, step: int) -> None:
        held = self._state.held()
        meta = self._state.capture_meta()
        self._state.check(meta)
        self.states[step] = Captured(step, list(held), [each.tensor.detach().clone() for each in held], meta)

    def _restore(self, state: Captured) -> None:
        self._state.zero_gradients()
        self._state.put_back(state.held, state.sources, state.meta)
        self.next_step = state.step
