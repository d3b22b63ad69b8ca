"""The iterator form of the step loop: the boundary is the call for the next step. For scripts, and for frameworks' loops."""

import atexit
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from deadpool.trainer_hooks.data.batches import StepBatches


class SteppedBy(Protocol):
    """What the iterator form needs of a guard, besides what scripts may call."""

    next_step: int

    def begin(self, *, until: int, start: int | None = None, rehearse: bool = True) -> None: ...

    def step(self) -> AbstractContextManager[Any]: ...

    def finish(self) -> bool: ...

    def ended(self) -> None:
        """The script is through with the step, of which nothing is left to be done."""

    def given(self, batches: Any) -> bool:
        """The step under way has its batches. Returns False when it is void already and need not be made."""

    def left_in_step(self) -> None:
        """The script has left the loop in the middle of a step. Does not return in a generation that is broken."""

    def script_failed(self, error: Exception) -> None:
        """The process ends by this error, which has left the loop."""


class Steps:
    """What `guard.steps()` returns. A script iterates over it, once; a framework whose loop is not ours calls `next` and `leave`.

    Each step is a call of `next`, which is the boundary: the step before it ends there, is complete or is done again, and the
    next one begins. So the script cannot see whether a step has ended, and what it does between two calls may be repeated.
    """

    def __init__(self, guard: SteppedBy, batches: StepBatches, *, start: int | None, until: int, rehearse: bool) -> None:
        self._guard, self._batches = guard, batches
        self._start, self._until, self._rehearse = start, until, rehearse
        self._begun = self._finished = self._left = False
        self._attempt: AbstractContextManager[Any] | None = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        try:
            while (taken := self.next()) is not None:
                yield taken
        except GeneratorExit:
            self.leave()
            raise

    def next(self) -> tuple[int, Any] | None:
        """Returns (step, batch) for the step that is to be made now; None when all ranks have made all steps.

        The batch is a list of `accumulate` ones where that is more than 1. After a None the loop is over; a framework that calls
        again gets None again.
        """
        guard = self._guard
        if self._finished:
            return None
        assert not self._left, "the loop was left"
        if not self._begun:
            self._begun = True
            atexit.register(self._process_ends)
            guard.begin(start=self._start, until=self._until, rehearse=self._rehearse)
        self._end_attempt()
        while True:
            while guard.next_step >= self._until:
                if guard.finish():
                    self._finished = True
                    return None
            step = guard.next_step
            attempt = self._attempt = guard.step()
            attempt.__enter__()
            try:
                batches = self._batches.of(step)
            except Exception as error:
                self._attempt = None
                if not attempt.__exit__(type(error), error, error.__traceback__):
                    raise
                continue
            if guard.given(batches):
                return step, batches
            self._batches.forget(step)
            self._end_attempt()

    def leave(self) -> None:
        """The script leaves the loop in the middle of a step: the state to go on from is the one before it.

        Where other ranks are gone this does not return: nothing that the script has seen in this step was real.
        """
        if self._attempt is not None:
            self._left, self._attempt = True, None
            self._guard.left_in_step()

    def _end_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.__exit__(None, None, None)
            self._guard.ended()

    def _process_ends(self) -> None:
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception) and (self._left or self._attempt is not None):
            self._guard.script_failed(error)
        self.leave()
