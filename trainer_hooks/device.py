"""A device on which work runs later than it is called: the little that protection and groups need of its streams.

Two streams: the one on which the calling thread computes, and one beside it, for copies. What is put on one of them runs in that
order; between them there is none but by marks. CudaDevice is the real one, tests/support/fake_device.py its twin.
"""

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

log = logging.getLogger(__name__)


class Mark(Protocol):
    """A point in the work of a stream."""

    def reached(self) -> bool:
        """Returns whether all work before it has ended."""

    def wait(self) -> None:
        """Returns once it is reached. The interpreter's lock is free meanwhile, and so is the processor."""

    def since_s(self, earlier: "Mark") -> float:
        """Returns how long after `earlier` it was reached, as the device's own clock has it. Both are reached, and timed."""


class Device(Protocol):
    def mark(self, *, beside: bool = False, timed: bool = False) -> Mark:
        """Returns a mark behind all work so far: of the calling thread's stream, or of the one beside it."""

    def follow(self, mark: Mark, *, beside: bool = False) -> None:
        """All later work of that stream waits for the mark. The host does not."""

    def run(self, work: Callable[[], None], uses: Sequence[Tensor]) -> None:
        """Puts work on the stream beside. The memory of `uses` is given to nobody else before it has ended."""

    def buffer(self, size_bytes: int) -> Tensor:
        """Returns memory of the device, [size_bytes] uint8, for work on the stream beside."""

    def has(self, tensor: Tensor) -> bool:
        """Returns whether the tensor lies on the device."""

    def pin(self, memory: Tensor) -> None:
        """Makes host memory fit for copies that the host does not wait for, until this very tensor is freed."""


def own_gpu() -> "CudaDevice | None":
    """Returns the GPU that this process computes on; None where there is none."""
    return CudaDevice(torch.device("cuda", torch.cuda.current_device())) if torch.cuda.is_available() else None


class CudaDevice:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self, *, beside: bool = False, timed: bool = False) -> "CudaMark":
        event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream(beside))
        return CudaMark(event)

    def follow(self, mark: Mark, *, beside: bool = False) -> None:
        assert isinstance(mark, CudaMark)
        self._stream(beside).wait_event(mark.event)

    def run(self, work: Callable[[], None], uses: Sequence[Tensor]) -> None:
        with torch.cuda.stream(self._beside):
            work()
        for tensor in uses:
            tensor.record_stream(self._beside)

    def buffer(self, size_bytes: int) -> Tensor:
        with torch.cuda.stream(self._beside):
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def has(self, tensor: Tensor) -> bool:
        return tensor.is_cuda

    def pin(self, memory: Tensor) -> None:
        runtime, address = torch.cuda.cudart(), memory.data_ptr()  # type: ignore[no-untyped-call]
        status = int(runtime.cudaHostRegister(address, memory.numel(), 0))
        if status:
            log.warning("%d bytes of the vault cannot be pinned (CUDA error %d): copies are slower", memory.numel(), status)
            return
        # else the driver would take other memory that is mapped there later for this one
        weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False

    def _stream(self, beside: bool) -> Any:
        return self._beside if beside else torch.cuda.current_stream(self._device)


class CudaMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def reached(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def since_s(self, earlier: Mark) -> float:
        assert isinstance(earlier, CudaMark)
        return float(earlier.event.elapsed_time(self.event)) / 1e3
