"""One step at a time of a loop that a framework owns: it begins and completes in the framework's own calls."""

import deadpool


class WentElsewhereError(Exception):
    """The step was discarded and the process may hold another state: leaves the framework's loop, which is then entered again."""


class Stepping:
    """Between `completed()` and the next `begin()` lies the loop body, as in Guard."""

    def __init__(self, guard: deadpool.Guard) -> None:
        self._guard = guard
        self._attempt: deadpool.Attempt | None = None

    def begin(self) -> None:
        """The guard's next step begins: S_next_step is what the process holds now."""
        self._attempt = self._guard.step().__enter__()

    def completed(self) -> None:
        """The step has come to its end; raises WentElsewhereError when it must be discarded."""
        attempt, self._attempt = self._attempt, None
        assert attempt is not None, "no step is under way"
        attempt.__exit__(None, None, None)
        if not attempt.completed:
            raise WentElsewhereError

    def discards(self, error: Exception) -> bool:
        """Returns whether this error, which has left the framework's loop, is one of a step that is discarded."""
        if isinstance(error, WentElsewhereError):
            return True
        attempt, self._attempt = self._attempt, None
        return attempt is not None and attempt.__exit__(type(error), error, error.__traceback__) is True
