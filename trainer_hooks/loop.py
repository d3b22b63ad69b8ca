"""The step loop as a script sees it: what every guard offers, protected or not, and one try of one step."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.description import Description
from deadpool.trainer_hooks.steps import Steps

Value = TypeVar("Value")

ONE_LOOP = (
    "guard.run() or begin() was called before: one loop holds all steps of a training; what belongs to the end of an epoch goes "
    "into the loop body, which may communicate and change the state"
)


class Attempt:
    """One try of one step, as a context manager. `completed` is known after the block: False means try `guard.next_step`.

    An exception of the script leaves the block; one of a step that is to be discarded (its ranks are gone) does not.
    """

    def __init__(self, loop: "AttemptedBy", step: int) -> None:
        self.step = step
        self.completed = False
        self._loop = loop

    def __enter__(self) -> "Attempt":
        self._loop.begin_attempt(self.step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[True] | None:
        if error is not None and not isinstance(error, Exception):
            return None
        self.completed, propagate = self._loop.end_attempt(self.step, error)
        return None if propagate else True


class AttemptedBy(Protocol):
    """What a guard does around an attempt."""

    def begin_attempt(self, step: int) -> None: ...

    def end_attempt(self, step: int, error: Exception | None) -> tuple[bool, bool]:
        """Returns (completed, whether the error is the script's own and must be raised)."""


class Guard(Protocol):
    """What `protect()` returns: the step loop of one training. All methods are for the main thread.

    `run` is the loop, or `steps`, whose loop body is the step; `begin`, `step` and `finish` are for a loop of the script's own
    (examples/own_loop.py):

        guard.begin(until=1000)
        while True:
            while guard.next_step < 1000:
                with guard.step() as attempt:
                    loss = train_step(attempt.step)
                if attempt.completed:
                    print(attempt.step, loss)
            if guard.finish():
                break
    """

    next_step: int

    @property
    def counters(self) -> Counters:
        """What protection has moved, and what it has made the training wait for."""

    @property
    def protecting(self) -> bool:
        """Set to False, on all ranks after the same step, no snapshots are taken; a failure then goes back to the last one.

        For measurements. The job's status says that it is unprotected, and that it is protected again.
        """

    @protecting.setter
    def protecting(self, on: bool) -> None: ...

    def describe(self) -> Description:
        """Returns what this rank holds of the state: what other ranks hold as well, what is unique, where its replicas are.

        print() shows it as a table, `to_json()` gives values. Before the first commit it says that this is not known yet.
        """

    def run(self, train_step: Callable[[int], Value], *, until: int, start: int = 0) -> Iterator[tuple[int, Value]]:
        """Yields (step, train_step(step)) for each completed step in [start, until).

        train_step(k) takes the training from S_k with one optimizer step. It may run again after a failure, with the same state
        and random numbers, so it must depend on nothing else that changes.

        The loop body belongs to the step: it may communicate and change the state. When ranks fail, a step whose body some rank
        has not been through with is yielded again, on all ranks, so what a body writes may be written twice. A call of
        torch.distributed in a body never returns what was not communicated: the process ends in it, and a fresh one takes its
        place. Leaving the loop (break, return, an exception) leaves it in the body of that step: what the script does then still
        belongs to it. One loop holds all steps: ConfigError when it is entered a second time.
        """

    def steps(
        self,
        loader: Any,
        *,
        until: int,
        start: int = 0,
        accumulate: int = 1,
        epochs_apart: bool = False,
        rehearse: bool = False,
    ) -> Steps:
        """Returns an iterator over (step, batch): the body of the loop is the step, and ends with the call for the next one.

            for step, batch in guard.steps(loader, until=1000):
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if guard.live:
                    print(step, loss.item())

        The body may hold anything. After a failure it runs again, with the same batch and random numbers; survivors come to its
        end first, and what they see on the way is not real (`live`). A step that is done again is yielded again.

        `loader`: a DataLoader, a StatefulDataLoader, something else that can be iterated again, a function from a batch's number
        (from 0) to the batch, or None. It is iterated from epoch to epoch, with set_epoch where there is one; its place is part
        of the state. What it draws from the global generators is drawn apart from the training: from a seed that depends on
        their state in this call, on the epoch and on the number of the batch, in the loader's workers as well.

        `accumulate`: batches for a step; with more than 1 `batch` is a list. `epochs_apart`: the last step of an epoch gets what
        is left of it. `rehearse`: a joiner goes through the body twice, on values that are not real, before the others need it.
        Pipelines must have it, compiled models want it; the body then must write and say nothing unless `live`.

        Leaving the loop (break, return, an exception) leaves the step undone: the state to go on from is the one before it.
        ConfigError: the loader is an iterator, or has no batch.
        """

    @property
    def live(self) -> bool:
        """Whether all that the script has seen in this step is real. False: the step will be discarded, values are made up."""

    def begin(self, *, start: int = 0, until: int, rehearse: bool = True) -> None:
        """Enters the loop with S_start in the process. Returns once it is protected (a joiner: immediately).

        Without `rehearse` a joiner makes no attempts of its own, and returns only when it has the state.
        """

    def step(self) -> Attempt:
        """Returns the context for one attempt of `next_step`. What follows it, up to the next one, is that step's loop body.

        A body here may run again for a step that every rank has been through with.
        """

    def finish(self) -> bool:
        """Returns True when every rank has finished; False when a recovery has led back behind the end (`next_step`)."""
