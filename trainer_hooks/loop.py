"""The step loop as a script sees it: what every guard offers, protected or not, and one try of one step."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Protocol, SupportsFloat, TypeVar

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.description import Description
from deadpool.trainer_hooks.steps import Steps

Value = TypeVar("Value")


class Loops:
    """The loops of one training: each goes on where the one before has ended, so that a step belongs to one of them. Pure.

    `start`, `until`: of the present one, or the last. `number`: of it, from 1 on; 0 before the first.
    """

    def __init__(self) -> None:
        self.start = self.until = self.number = 0
        self._ended_at: int | None = None

    @property
    def is_first(self) -> bool:
        return self.number == 1

    def begin(self, start: int | None, until: int) -> None:
        """Another loop is entered. ConfigError when the one before has not come to its end, or steps would not count on."""
        if self.number == 0:
            self.start = start or 0
        elif self._ended_at != self.until:
            raise ConfigError(
                f"the loop of steps {self.start} to {self.until} was left before its end (break, return, an exception), so no "
                "other can follow it: which steps are whose could not be told; what comes after it belongs to its body"
            )
        elif until <= self.until or start not in (None, self.until):
            given = f"until={until}" if start is None else f"start={start}, until={until}"
            raise ConfigError(
                f"steps count on through all loops of a training: this one goes on at step {self.until}, and {given} is given; "
                f"make until larger than {self.until}, and leave start out"
            )
        else:
            self.start = self.until
        self.until, self._ended_at = max(self.start, until), None
        self.number += 1

    def needs(self, step: int) -> bool:
        """Returns whether S_step must be kept safe however seldom states are: the loop ends with it, or what the script has done
        since the loop before is in no earlier one.
        """
        return step == self.until or (self.number > 1 and step == self.start + 1)

    def ended(self, step: int) -> None:
        """The loop is over, with S_step."""
        self._ended_at = step


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

    Several loops may follow each other, as one for each epoch; steps count on through all of them:

        for epoch in range(10):
            for step, loss in guard.run(train_step, until=100 * (epoch + 1)):
                ...
            scheduler.step()
            if not guard.catching_up:
                save(evaluate())

    What is done between two loops runs once every rank is at the end of the first one, with the true state; it may communicate
    and change the state. No snapshot has what it changed before the next step is complete: after a failure until then, all ranks
    come back to the end of the loop before, in fresh processes, and it runs again.
    """

    next_step: int

    @property
    def catching_up(self) -> bool:
        """Whether this process is not yet where the training is: it has taken over a rank, or resumes from a checkpoint.

        Such a process passes the loops that are behind it: `run` yields nothing, and what stands between them runs with a state
        that nobody has trained, in a process that takes over a rank also with muted groups. All that it changes in models,
        optimizers and extras is replaced once the process is there. What it writes elsewhere stays, and what takes long is waited
        for: `if not guard.catching_up:` goes before both. How many loops there are, and how long, must not depend on results.
        """

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

    def report(
        self, *, loss: SupportsFloat | None = None, tokens: SupportsFloat | None = None, **numbers: SupportsFloat | None
    ) -> None:
        """Shows these numbers in `deadpool status`, on its page and in the metrics; from any rank, as often as is wanted.

            guard.report(loss=loss.item(), tokens=batch.numel(), learning_rate=scheduler.get_last_lr()[0])

        `tokens`: that this rank has processed since its last report; those of all ranks are summed, and shown as a rate. Of each
        other name the newest value of the lowest rank that reports it is shown; 16 names at most, of 32 bytes. What is reported
        in a step that is discarded does not count. ConfigError: what cannot be shown.
        """

    def run(self, train_step: Callable[[int], Value], *, until: int, start: int | None = None) -> Iterator[tuple[int, Value]]:
        """Yields (step, train_step(step)) for each completed step in [start, until).

        `start`: 0 in the first loop; a later one goes on where the one before has ended. ConfigError when that would leave it no
        step, `start` says otherwise, or the loop before was left before its end.

        train_step(k) takes the training from S_k with one optimizer step. It may run again after a failure, with the same state
        and random numbers, so it must depend on nothing else that changes.

        The loop body belongs to the step: it may communicate and change the state. When ranks fail, a step whose body some rank
        has not been through with is yielded again, on all ranks, so what a body writes may be written twice. A call of
        torch.distributed in a body never returns what was not communicated: the process ends in it, and a fresh one takes its
        place. Leaving the loop (break, return, an exception) leaves it in the body of that step: what the script does then still
        belongs to it, and no other loop can follow.
        """

    def steps(
        self,
        loader: Any,
        *,
        until: int,
        start: int | None = None,
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
        is left of it. `rehearse`: a joiner goes through the body once or twice (docs/spares.md), on values that are not real,
        before the others need it. Pipelines must have it, compiled models want it; the body then must write and say nothing
        unless `live`.

        Leaving the loop (break, return, an exception) leaves the step undone: the state to go on from is the one before it.
        ConfigError: the loader is an iterator, or has no batch.
        """

    @property
    def live(self) -> bool:
        """Whether all that the script has seen in this step is real. False: the step will be discarded, values are made up."""

    def begin(self, *, until: int, start: int | None = None, rehearse: bool = True) -> None:
        """Enters a loop, as `run` does. Returns once its first state is protected, or all ranks are there; in a joiner, soon.

        `next_step` is `until` where the loop is passed. Without `rehearse` a joiner makes no attempts of its own, and waits until
        it has the state.
        """

    def step(self) -> Attempt:
        """Returns the context for one attempt of `next_step`. What follows it, up to the next one, is that step's loop body.

        A body here may run again for a step that every rank has been through with.
        """

    def finish(self) -> bool:
        """Returns True when every rank has finished; False when a recovery has led back behind the end (`next_step`)."""
