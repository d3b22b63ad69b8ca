"""The works that our groups hand out: they end by themselves when their generation breaks, whatever the inner work does.

Inner works differ in how they can be waited for, hence three classes:
* SlicedWork: the wait can be cut into slices without harm (Gloo's collectives, which also have a future). ScatteredWork is one
  whose result has to be put where it belongs.
* ThreadWork: a wait that times out would destroy the operation (Gloo's send and recv: it closes the pair) or knows no timeout
  (reduce_scatter of lists). A thread waits for it in full, and the caller waits for an event.
* StreamWork: CUDA; wait() only orders streams and returns immediately.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.trainer_hooks.groups import muted
from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.groups.generation import Calls, Generation

Future = torch.futures.Future

_SLICE = timedelta(milliseconds=20)
_NO_TIMEOUT = timedelta(0)  # as c10d has it

# What torch says when the call itself was wrong (the user's to mend); everything else is taken for a failed connection.
_USAGE = ("ProcessGroupGloo::", "ReduceOp", "scalar type", "not supported", "not implemented", "does not support")


def is_usage_error(error: Exception) -> bool:
    """True when `error` says that the caller used a collective wrongly; such an error is raised, not settled."""
    return not isinstance(error, dist.DistError) and any(text in str(error) for text in _USAGE)


class MutedWork(dist.Work):
    """A work that was complete before it began. `rank`: what a receive from any source names as its source."""

    def __init__(self, tensors: list[torch.Tensor], rank: int) -> None:
        super().__init__()
        self._tensors = tensors
        self._rank = rank

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def block_current_stream(self) -> None:
        pass

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> "Future[Any]":
        future = _new_future(self._tensors)
        future.set_result(self._tensors)
        return future

    def get_future_result(self) -> "Future[Any]":
        return _success()

    def source_rank(self) -> int:
        return self._rank

    _source_rank = source_rank

    def _get_duration(self) -> float:
        return 0.0


class GroupWork(dist.Work):
    """The work of a call on an open group. Its generation keeps it until the inner work has ended.

    `args`: the call's positional arguments; the first holds the tensors that the future's value is made of.
    """

    only_reads = False
    on_device = False

    def __init__(self, generation: Generation, calls: Calls, inner: dist.Work, operation: str, args: tuple[Any, ...]) -> None:
        super().__init__()
        self._place = calls.place
        self._generation = generation
        self.calls = calls
        self._inner: dist.Work | None = inner
        self.operation = operation
        self._args = args
        self._lock = threading.Lock()
        self._ended = False
        self._counted = False  # in the group's ledger, as ended
        self._settled = False  # ended by the break, with whatever the tensors hold
        self._error: Exception | None = None
        self._future: Future[Any] | None = None
        self._resolved = False
        self._source: int | None = None
        self.when_done: Callable[[], None] | None = None  # called once, in `wait`, if the inner work has ended well

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Returns True when the operation is done or its generation has broken; raises only what is the caller's mistake."""
        if not self._ended:
            limit_s = timeout.total_seconds()
            self._wait_until_ended(time.monotonic() + limit_s if limit_s > 0 else None)
        if self._error is not None:
            raise self._error
        if self._settled:
            self._generation.on_muted()
            self._answer()
        elif self.when_done is not None:
            when_done, self.when_done = self.when_done, None
            when_done()
        return True

    def is_completed(self) -> bool:
        if not self._ended:
            self.inner_ended()
        return self._ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        inner = self._inner
        if inner is not None and not self._settled:
            inner.block_current_stream()

    def result(self) -> list[torch.Tensor]:
        return self._tensors()

    def get_future(self) -> "Future[Any]":
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = _new_future(self._tensors())
            inner = self._inner
        if self._ended or inner is None:
            self._resolve()
        else:
            self._follow(inner)
        return self._future

    def get_future_result(self) -> "Future[Any]":
        self.wait()
        return _success()

    def source_rank(self) -> int:
        rank, size = self._place
        return (rank + 1) % size if self._source is None else self._source

    _source_rank = source_rank

    def _get_duration(self) -> float:
        inner: Any = self._inner
        return 0.0 if inner is None or self._settled else float(inner._get_duration())

    def settle(self) -> None:
        """Ends the work now, without an error; the inner work may still run, and is kept until it has ended."""
        self._end(settled=True)

    def inner_ended(self) -> bool:
        """True once the inner work will touch the tensors no more. Ends this work, too, when it finds so."""
        inner = self._inner
        if inner is not None and inner.is_completed():
            self._take_result(inner)
        return self._inner is None

    def _answer(self) -> None:
        """Fills the outputs as a muted call does: half of a result would be uninitialised memory to whoever waited for it."""
        rank, size = self._place
        muted.answer(self.operation, rank, size, self._args)

    def _finish(self) -> None:
        """The inner work has ended well, and nobody has taken this one for ended yet."""

    def _wait_until_ended(self, deadline_s: float | None) -> None:
        raise NotImplementedError

    def _follow(self, inner: dist.Work) -> None:
        """Sees to it that the future is resolved when the inner work is done."""
        raise NotImplementedError

    def _take_result(self, inner: dist.Work) -> None:
        """Waits for an inner work that can be waited for in full, and ends this one accordingly."""
        try:
            inner.wait()
        except RuntimeError as error:
            self._inner_done(error)
        else:
            if self.operation == "recv_anysource":
                self._source = inner.source_rank()
                self.calls.ledger.received(self._source)
            self._inner_done(None)

    def _inner_done(self, error: RuntimeError | None) -> None:
        with self._lock:  # two threads may come here, and both go on only once it is counted
            if error is not None:
                self.calls.ledger.failed = True
            elif not self._counted:
                self._counted = True
                self.calls.ledger.end()
        if error is None:
            self._end()
        elif is_usage_error(error) and not self._generation.broken:
            self._end(error)
        else:
            self._generation.fail(f"{self.operation}: {error}")
            self._end(settled=True)
        self._inner = None
        self._generation.forget(self)

    def _end(self, error: Exception | None = None, *, settled: bool = False) -> None:
        with self._lock:
            if self._ended:
                return
            if error is None and not settled:
                self._finish()
            self._error, self._settled = error, settled
            self._ended = True
        if not settled:
            self.calls.complete(on_device=self.on_device)
        self._resolve()

    def _resolve(self) -> None:
        with self._lock:
            if self._future is None or self._resolved:
                return
            self._resolved = True
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._tensors())

    def _tensors(self) -> list[torch.Tensor]:
        return muted.tensors_in(self._args[0]) if self._args else []


class SlicedWork(GroupWork):
    """Gloo's collectives. The one on the critical path: an uncontended wait is one call into the inner work."""

    def __init__(self, generation: Generation, calls: Calls, inner: dist.Work, operation: str, args: tuple[Any, ...]) -> None:
        super().__init__(generation, calls, inner, operation, args)
        generation.watch(self)

    def _wait_until_ended(self, deadline_s: float | None) -> None:
        inner = self._inner
        while not self._ended and inner is not None:
            try:
                inner.wait(_SLICE)
            except RuntimeError:  # the slice is over, or the operation has failed
                if inner.is_completed():
                    self._take_result(inner)
                elif deadline_s is not None and time.monotonic() > deadline_s:
                    raise
            else:
                self._inner_done(None)

    def _follow(self, inner: dist.Work) -> None:
        inner.get_future().add_done_callback(self._inner_future_done)

    def _inner_future_done(self, future: "Future[Any]") -> None:
        """Runs in a Gloo thread in the midst of ending the inner work: waiting for that work here would wait for ever."""
        try:
            future.value()
        except RuntimeError as error:
            self._inner_done(error)
        else:
            self._inner_done(None)


class ScatteredWork(SlicedWork):
    """`finish` puts the result in its place (reduce_scatter.py): not if the generation has broken before."""

    def __init__(
        self,
        generation: Generation,
        calls: Calls,
        inner: dist.Work,
        operation: str,
        args: tuple[Any, ...],
        finish: Callable[[], None],
    ) -> None:
        self._put = finish  # before any thread may find that the inner work has ended
        super().__init__(generation, calls, inner, operation, args)

    def _finish(self) -> None:
        self._put()


class ThreadWork(GroupWork):
    """Gloo's send and recv, and what has no future."""

    def __init__(self, generation: Generation, calls: Calls, inner: dist.Work, operation: str, args: tuple[Any, ...]) -> None:
        super().__init__(generation, calls, inner, operation, args)
        self.only_reads = operation == "send"
        self._event = threading.Event()
        generation.watch(self)
        daemons.run(lambda: self._take_result(inner), operation)

    def inner_ended(self) -> bool:
        return self._inner is None

    def _wait_until_ended(self, deadline_s: float | None) -> None:
        if not self._event.wait(None if deadline_s is None else deadline_s - time.monotonic()):
            raise RuntimeError(f"{self.operation}: operation timed out")

    def _follow(self, inner: dist.Work) -> None:
        pass  # the thread does

    def _resolve(self) -> None:
        self._event.set()
        super()._resolve()


class StreamWork(GroupWork):
    """NCCL's works. They end on the device; the generation's sweep notices it."""

    on_device = True

    def __init__(self, generation: Generation, calls: Calls, inner: dist.Work, operation: str, args: tuple[Any, ...]) -> None:
        super().__init__(generation, calls, inner, operation, args)
        calls.call_time.completed()  # as far as the host goes
        self._begun = calls.call_time.mark()
        generation.watch(self)

    def _wait_until_ended(self, deadline_s: float | None) -> None:
        inner = self._inner
        if inner is None:
            return
        begun = self.calls.call_time.mark()
        try:
            inner.wait()
        except RuntimeError as error:
            self._inner_done(error)
        self.calls.call_time.waited(begun)

    def _follow(self, inner: dist.Work) -> None:
        def done(_: "Future[Any]") -> None:  # immediately, on streams that the device orders
            self.calls.call_time.waited(self._begun)
            self._resolve()

        inner.get_future().add_done_callback(done)


def call_in_daemon(generation: Generation, operation: str, call: Callable[[], object]) -> None:
    """Runs a call that blocks (monitored_barrier) so that the caller gets out when the generation breaks.

    A failure breaks the generation; only what is the caller's mistake is raised.
    """
    ended = threading.Event()
    errors: list[RuntimeError] = []

    def run() -> None:
        try:
            call()
        except RuntimeError as error:
            errors.append(error)
        finally:
            ended.set()

    daemons.run(run, operation)
    while not ended.wait(_SLICE.total_seconds()):
        if generation.broken:
            generation.on_muted()
            return
    for error in errors:
        if is_usage_error(error) and not generation.broken:
            raise error
        generation.fail(f"{operation}: {error}")


def _new_future(tensors: list[torch.Tensor]) -> "Future[Any]":
    """Returns a future for these tensors; on CUDA, whoever takes its value waits for the streams that fill them."""
    devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
    return Future(devices=list(devices)) if devices else Future()


def _success() -> "Future[Any]":
    """Returns a future of the result code 0 (success), as Work.get_future_result gives it."""
    future: Future[int] = Future()
    future.set_result(0)
    return future
