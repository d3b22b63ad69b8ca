"""A device whose work runs late: when chance says so, or when somebody waits for it. Its memory is ordinary memory.

What is ordered by a mark runs in that order, all else in any: code that reads or writes without having waited finds other bytes.
A clock of its own goes on by a second with each piece of work.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from deadpool.trainer_hooks.device import Mark

_Work = Callable[[], object]


class FakeMark:
    def __init__(self, device: "FakeDevice", beside: bool) -> None:
        self._device, self.beside = device, beside
        self.at_s: float | None = None

    def reached(self) -> bool:
        with self._device.changed:
            self._device.chance()
            return self.at_s is not None

    def wait(self) -> None:
        with self._device.changed:
            self._device.changed.wait_for(lambda: self._device.advance(self, beside=self.beside))

    def since_s(self, earlier: Mark) -> float:
        assert isinstance(earlier, FakeMark)
        assert self.at_s is not None
        assert earlier.at_s is not None
        return self.at_s - earlier.at_s


class Collective:
    """Work that does not end before `end`, by itself or because it is aborted."""

    def __init__(self) -> None:
        self.over = False


class FakeDevice:
    def __init__(self, seed: int) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.now_s = 0.0
        self.runs = 0  # pieces of work beside
        self.pinned: list[int] = []
        self._random = random.Random(seed)
        self._queues: dict[bool, deque[_Work | FakeMark | tuple[FakeMark] | Collective]] = {False: deque(), True: deque()}
        self._memory: set[int] = set()

    # ------------------------------------------------------------ as deadpool.trainer_hooks.device.Device

    def mark(self, *, beside: bool = False, timed: bool = False) -> FakeMark:
        mark = FakeMark(self, beside)
        self._put(mark, beside)
        return mark

    def follow(self, mark: Mark, *, beside: bool = False) -> None:
        assert isinstance(mark, FakeMark)
        self._put((mark,), beside)

    def run(self, work: _Work, uses: Sequence[Tensor]) -> None:
        self.runs += 1
        self._put(work, beside=True)

    def buffer(self, size_bytes: int) -> Tensor:
        return self.own(torch.zeros(size_bytes, dtype=torch.uint8))

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._memory

    def pin(self, memory: Tensor) -> None:
        self.pinned.append(memory.data_ptr())

    # ------------------------------------------------------------ for tests

    def own(self, tensor: Tensor) -> Tensor:
        """Has the tensor lie on the device."""
        self._memory.add(tensor.untyped_storage().data_ptr())
        return tensor

    def compute(self, work: _Work) -> None:
        """Puts work on the stream of the training."""
        self._put(work, beside=False)

    def spend(self, seconds: int) -> None:
        """The stream of the training computes for so long."""
        for _ in range(seconds):
            self.compute(lambda: None)

    def collective(self) -> Collective:
        collective = Collective()
        self._put(collective, beside=False)
        return collective

    def end(self, collective: Collective) -> None:
        with self.changed:
            collective.over = True
            self.changed.notify_all()

    def chance(self) -> None:
        for beside in (False, True):
            while self._random.random() < 0.3 and self._step(beside):
                pass

    def advance(self, mark: FakeMark, *, beside: bool) -> bool:
        """Works on until the mark is reached; returns whether it is."""
        while mark.at_s is None:
            if not self._step(beside):
                return False
        return True

    def _put(self, what: _Work | FakeMark | tuple[FakeMark] | Collective, beside: bool) -> None:
        with self.changed:
            self._queues[beside].append(what)
            self.chance()
            self.changed.notify_all()

    def _step(self, beside: bool) -> bool:
        """Does the next thing of a stream; returns False where it has nothing to do, or must wait."""
        queue = self._queues[beside]
        if not queue:
            return False
        match queue[0]:
            case FakeMark() as mark:
                mark.at_s = self.now_s
            case (mark,):
                if mark.at_s is None:
                    return self._step(mark.beside)
            case Collective() as collective:
                if not collective.over:
                    return False
            case work:
                self.now_s += 1.0
                with torch.no_grad(), _disable_current_modes():
                    work()
        queue.popleft()
        self.changed.notify_all()
        return True
