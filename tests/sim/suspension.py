"""A simulated process that gets no time for a while: what comes to it waits, and is done in order once it wakes up."""

from collections import deque
from collections.abc import Callable
from typing import Any

from sim.world import World


class Suspension:
    """Of one process. `woken()` is called when all that had waited is done."""

    def __init__(self, world: World, woken: Callable[[], None]) -> None:
        self._world, self._woken = world, woken
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._until_s = 0.0

    @property
    def lasts(self) -> bool:
        return self._until_s > 0

    def begin(self, seconds: float) -> None:
        """One that lasts gets longer."""
        if not self.lasts:
            self._world.at(seconds, self._wake)
        self._until_s = max(self._until_s, self._world.now_s + seconds)

    def holds(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Returns whether the process gets no time at present; the action then waits until it does."""
        if self.lasts:
            self._waiting.append((action, arguments))
        return self.lasts

    def end(self) -> None:
        """The process is gone, with what it had not read."""
        self._until_s = 0.0
        self._waiting.clear()

    def _wake(self) -> None:
        if not self.lasts:
            return
        if self._world.now_s < self._until_s:
            self._world.on(self._until_s, self._wake)
            return
        self._until_s = 0.0
        while self._waiting:
            action, arguments = self._waiting.popleft()
            action(*arguments)
        self._woken()
