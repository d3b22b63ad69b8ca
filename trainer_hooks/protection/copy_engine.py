"""D2H: copies tensors into the vault's memory beside the computation. One narrow interface, a CPU and a CUDA side of it.

Order of calls for one state: `at_boundary` (main thread, S_k complete) -> `copy` for each group (protect thread; returns when the
copy is done or, on CUDA, enqueued) -> `fence` (main thread, before optimizer.step may change the sources) and, side by side with
it, `landed` for each group (protect thread; returns when the bytes are in the targets).

Where the host reads the sources itself, a large tensor is copied in steps instead, and one that seems not to have changed is read
first: `in_place` gives its bytes.
"""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

_PIECE_BYTES = 64 << 20  # of device memory that a comparison needs


class Engine(Protocol):
    copies_later: bool  # `copy` only enqueues
    group_bytes: int  # so much is copied together

    def register(self, memory: Tensor) -> None:
        """Makes the slot's memory (uint8, mapped) fit for fast copies; once per mapping."""

    def at_boundary(self) -> None:
        """Marks the point in the main thread's work after which the sources hold the state to copy."""

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> int:
        """Copies one chunk and returns its ticket for `landed`."""

    def landed(self, ticket: int) -> None: ...

    def in_place(self, source: Tensor) -> memoryview | None:
        """Returns the source's bytes as the host reads them, [nbytes]; None where it cannot, or they lie apart."""

    def fence(self) -> None:
        """Orders all later work of the calling thread behind the copies made so far."""

    def same(self, tensor: Tensor, copied: Tensor) -> bool:
        """Returns whether the tensor, as the calling thread sees it now, has the very bytes of this copy (in host memory)."""


def engine_for(device: torch.device) -> Engine:
    return CudaEngine(device) if device.type == "cuda" else CpuEngine()


class CpuEngine:
    """The copies are done when `copy` returns: there is nothing to wait for later."""

    copies_later = False
    group_bytes = 1 << 20  # a checksum that follows finds them in the cache

    def register(self, memory: Tensor) -> None:
        pass

    def at_boundary(self) -> None:
        pass

    @torch.no_grad()
    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> int:
        if sources:
            torch._foreach_copy_(list(targets), list(sources))
        return 0

    def landed(self, ticket: int) -> None:
        pass

    def in_place(self, source: Tensor) -> memoryview | None:
        return as_bytes(source).numpy().data if is_plain(source) and source.device.type == "cpu" else None

    def fence(self) -> None:
        pass

    def same(self, tensor: Tensor, copied: Tensor) -> bool:
        return torch.equal(as_bytes(tensor), as_bytes(copied))


class CudaEngine:
    """A side stream copies into pinned host memory; fences are device-side events, the host does not wait."""

    copies_later = True
    group_bytes = 32 << 20

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._boundary = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied: list[torch.cuda.Event] = []

    def register(self, memory: Tensor) -> None:
        status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)  # type: ignore[no-untyped-call]
        if status not in (0, 712):  # 712: already registered
            raise RuntimeError(f"cudaHostRegister of {memory.numel()} bytes failed with error {int(status)}; check `ulimit -l`")

    def at_boundary(self) -> None:
        self._copied = []
        self._boundary.record(torch.cuda.current_stream(self._device))

    @torch.no_grad()
    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> int:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._boundary)
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
                if source.is_cuda:
                    source.record_stream(self._stream)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._copied.append(event)
        return len(self._copied) - 1

    def landed(self, ticket: int) -> None:
        self._copied[ticket].synchronize()

    def in_place(self, source: Tensor) -> memoryview | None:
        return None

    def fence(self) -> None:
        if self._copied:
            torch.cuda.current_stream(self._device).wait_event(self._copied[-1])

    def same(self, tensor: Tensor, copied: Tensor) -> bool:
        pairs = zip(torch.split(as_bytes(tensor), _PIECE_BYTES), torch.split(as_bytes(copied), _PIECE_BYTES), strict=True)
        return all(torch.equal(piece, there.to(piece.device, non_blocking=True)) for piece, there in pairs)


def copy_bytes(source: memoryview, target: memoryview) -> None:
    """Copies bytes of the same number. The interpreter's lock is free meanwhile."""
    ctypes.memmove(_address(target), _address(source), len(source))


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns the tensor's bytes, [nbytes] uint8, in row-major order: over its own memory where that is what is_plain says."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def is_plain(tensor: Tensor) -> bool:
    """Returns whether the tensor's memory is its bytes in row-major order, so that they can be written there as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
