"""The works that our groups hand out: they end by themselves when their generation breaks, whatever the inner work does.

Three ways to wait for an inner work:
* SLICED: its wait can be cut into slices without harm (Gloo's collectives, which also have a future).
* THREAD: a wait that times out would destroy the operation (Gloo's send and recv: the pair is closed; reduce_scatter ignores
  the timeout). A thread waits for it in full, and the caller waits for an event.
* STREAM: CUDA; wait() only orders streams and returns at once.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from deadpool.trainer_hooks import muted
from deadpool.trainer_hooks.generation import Calls, Generation

_SLICE = timedelta(milliseconds=20)
_FOREVER = timedelta(0)  # c10d's kNoTimeout

# What torch says when the call itself was wrong (the user's to mend); everything else is taken for a failed connection.
_USAGE = ("ProcessGroupGloo::", "ProcessGroupNCCL::", "ReduceOp", "scalar type", "not supported", "not implemented", "does not support")


class Waiting(Enum):
    SLICED = "sliced"
    THREAD = "thread"
    STREAM = "stream"


def is_usage_error(error: Exception) -> bool:
    """True when `error` says that the caller used a collective wrongly; such an error is raised, not settled."""
    return not isinstance(error, dist.DistError) and any(text in str(error) for text in _USAGE)


class MutedWork(dist.Work):
    """A work that was completed before it began."""

    def __init__(self, tensors: Any, rank: int) -> None:
        super().__init__()
        self._tensors = tensors
        self._rank = rank

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
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
        return muted.tensors_in(self._tensors)

    def get_future(self) -> "torch.futures.Future[Any]":
        future = new_future(self._tensors)
        future.set_result(self._tensors)
        return future

    def get_future_result(self) -> "torch.futures.Future[Any]":
        return successful()

    def source_rank(self) -> int:
        return self._rank

    _source_rank = source_rank

    def _get_duration(self) -> float:
        return 0.0


class GroupWork(dist.Work):
    """The work of a LIVE call. Kept alive by its generation until the inner work has ended."""

    def __init__(
        self, generation: Generation, calls: Calls, inner: dist.Work, waiting: Waiting, operation: str, args: tuple[Any, ...]
    ) -> None:
        super().__init__()
        self._generation = generation
        self._calls = calls
        self._inner: dist.Work | None = inner
        self._waiting = waiting
        self._operation = operation
        self._args = args
        self._lock = threading.Lock()
        self._ended = False
        self._settled = False  # ended by the break, with whatever the tensors hold
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._unresolved: torch.futures.Future[Any] | None = None
        self._source_rank_: int | None = None
        generation.watch(self)
        if waiting is Waiting.THREAD:
            self._event = threading.Event()
            if self._ended:
                self._event.set()
            run_aside(self._wait_aside)

    # -- for the caller (the names are torch's)

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        if not self._ended:
            limit_s = timeout.total_seconds()
            self._wait_for_end(time.monotonic() + limit_s if limit_s > 0 else None)
        if self._error is not None:
            raise self._error
        if self._settled:
            muted.clear_sizes(self._args)
        return True

    def is_completed(self) -> bool:
        if not self._ended and self._waiting is not Waiting.THREAD:
            inner = self._inner
            if inner is not None and inner.is_completed():
                self._take_result(inner)
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
        return muted.tensors_in(self._value())

    def get_future(self) -> "torch.futures.Future[Any]":
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = self._unresolved = new_future(self._value())
            inner = self._inner
        if self._ended:
            self._resolve()
        elif inner is not None and self._waiting is not Waiting.THREAD:
            inner.get_future().add_done_callback(lambda _: self._take_result(inner))
        return self._future

    def get_future_result(self) -> "torch.futures.Future[Any]":
        self.wait()
        return successful()

    def source_rank(self) -> int:
        inner = self._inner
        if self._source_rank_ is None and inner is not None and not self._settled:
            return inner.source_rank()
        return self._source_rank_ or 0

    _source_rank = source_rank

    def _get_duration(self) -> float:
        inner = self._inner
        return 0.0 if inner is None or self._settled else inner._get_duration()

    # -- for the generation

    def settle(self) -> None:
        """Ends the work now, without an error; the inner work may still run, and is kept until it has ended."""
        self._settled = not self._ended
        self._end(None)

    def inner_ended(self) -> bool:
        inner = self._inner
        return inner is None or (self._waiting is not Waiting.THREAD and inner.is_completed())

    # -- inside

    def _wait_for_end(self, deadline_s: float | None) -> None:
        inner = self._inner
        if self._waiting is Waiting.THREAD or inner is None:
            if not self._event.wait(None if deadline_s is None else deadline_s - time.monotonic()):
                raise RuntimeError(f"{self._operation}: operation timed out")
        elif self._waiting is Waiting.STREAM:
            self._take_result(inner)
        else:
            while not self._ended:
                try:
                    inner.wait(_SLICE)
                except RuntimeError:  # the slice is over, or the operation has failed
                    if inner.is_completed():
                        self._take_result(inner)
                    elif deadline_s is not None and time.monotonic() > deadline_s:
                        raise
                else:
                    self._inner_done(None)

    def _wait_aside(self) -> None:
        inner = self._inner
        if inner is not None:
            self._take_result(inner)

    def _take_result(self, inner: dist.Work) -> None:
        """Waits for the inner work, which has completed or can be waited for in full, and ends this one accordingly."""
        try:
            inner.wait()
        except RuntimeError as error:
            self._inner_done(error)
        else:
            self._inner_done(None)

    def _inner_done(self, error: RuntimeError | None) -> None:
        if self._operation == "recv_anysource" and error is None and self._inner is not None:
            self._source_rank_ = self._inner.source_rank()
        if error is None:
            self._end(None)
        elif is_usage_error(error) and not self._generation.broken:
            self._end(error)
        else:
            self._generation.fail(f"{self._operation}: {error}")
            self.settle()
        self._inner = None
        self._generation.forget(self)

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            if self._ended:
                return
            self._error = error
            self._ended = True
        if not self._settled:
            self._calls.complete()
        if self._waiting is Waiting.THREAD and hasattr(self, "_event"):
            self._event.set()
        self._resolve()

    def _resolve(self) -> None:
        with self._lock:
            future, self._unresolved = self._unresolved, None
        if future is None:
            return
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._value())

    def _value(self) -> Any:
        """Returns what the inner work's future would hold: DDP's hook wants the tensors."""
        if not self._args:
            return []
        return muted.tensors_in(self._args[0])


def new_future(tensors: Any) -> "torch.futures.Future[Any]":
    """Returns a future for these tensors; one on CUDA makes whoever takes its value wait for the streams that fill them."""
    devices = {tensor.device for tensor in muted.tensors_in(tensors) if tensor.device.type != "cpu"}
    return torch.futures.Future(devices=list(devices)) if devices else torch.futures.Future()


def successful() -> "torch.futures.Future[Any]":
    """Returns a future of the result code 0 (success), as Work.get_future_result gives it."""
    future: torch.futures.Future[int] = torch.futures.Future()
    future.set_result(0)
    return future


# -- daemon threads that are used again: concurrent.futures would join a stuck one at exit

_tasks: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
_idle = threading.Semaphore(0)
_IDLE_S = 5.0


def run_aside(task: Callable[[], None]) -> None:
    """Runs `task` in a thread at once, however many run already."""
    if not _idle.acquire(blocking=False):
        threading.Thread(target=_work, args=(task,), name="deadpool-waiter", daemon=True).start()
    else:
        _tasks.put(task)


def _work(task: Callable[[], None]) -> None:
    while True:
        task()
        _idle.release()
        try:
            task = _tasks.get(timeout=_IDLE_S)
        except queue.Empty:
            if _idle.acquire(blocking=False):
                return  # nobody counts on this thread
            task = _tasks.get()  # someone has just done


def call_aside(generation: Generation, operation: str, call: Callable[[], object]) -> None:
    """Runs a call that blocks (monitored_barrier) so that the caller gets out when the generation breaks.

    Raises the call's error unless the generation is broken.
    """
    ended = threading.Event()
    errors: list[RuntimeError] = []

    def run() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(ended.set)
            try:
                call()
            except RuntimeError as error:
                errors.append(error)

    run_aside(run)
    while not ended.wait(_SLICE.total_seconds()):
        if generation.broken:
            return
    if errors and not generation.broken:
        raise errors[0]
