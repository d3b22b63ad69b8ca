"""Copies tensors into the vault's memory beside the computation. One narrow interface: here and in device_engine.py.

Order of calls for one state: `at_boundary` (main thread, S_k complete, what must be cloned is) -> `copy` for each group (protect
thread; returns when the copy is done or, from a device, under way) -> `fence` (main thread, before optimizer.step may change the
sources) and, side by side with it, `landed` for each group (protect thread; returns when the bytes are in the targets), and at
last `is_true`.

Where the host reads the sources itself, a large tensor is copied in steps instead, many small ones together (`gather`), and one
that seems not to have changed is read first: `in_place` gives its bytes.
"""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from deadpool.trainer_hooks.device import Mark
from deadpool.trainer_hooks.protection.gather import Gather

Point = object  # where S_k was complete in the main thread's work; the engine that gave it knows more
Ticket = Mark | None


class Engine(Protocol):
    copies_later: bool  # `copy` only begins
    group_bytes: int  # so much is copied together

    def register(self, memory: Tensor) -> None:
        """Makes the slot's memory (uint8, mapped) fit for fast copies; once per mapping, which lives as long as this tensor."""

    def at_boundary(self) -> Point:
        """Returns the point in the main thread's work after which the sources hold the state to copy."""

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor], point: Point) -> Ticket:
        """Copies one group of the state that is complete at this point; returns what `landed` is given."""

    def landed(self, ticket: Ticket) -> None: ...

    def gather(self, gather: Gather, addresses: NDArray[numpy.uint64], file: int, offset: int) -> None:
        """Copies small tensors, which the host reads itself, into the slot's file; the copy is done then."""

    def is_true(self, point: Point) -> bool:
        """Returns whether the state was complete there before its generation's groups were aborted."""

    def abort_begins(self) -> None:
        """The groups are about to be aborted: what has not ended yet will end on garbage. Any thread."""

    def begin(self) -> None:
        """New groups are open. Main thread."""

    def in_place(self, source: Tensor) -> memoryview | None:
        """Returns the source's bytes as the host reads them, [nbytes]; None where it cannot, or they lie apart."""

    def fence(self) -> None:
        """Orders all later work of the calling thread behind the copies made so far."""

    def same(self, tensor: Tensor, copied: Tensor) -> bool:
        """Returns whether the tensor, as the calling thread sees it now, has the very bytes of this copy (in host memory)."""


class CpuEngine:
    """The copies are done when `copy` returns: there is nothing to wait for later. What has failed has said so by then."""

    copies_later = False
    group_bytes = 1 << 20  # a checksum that follows finds them in the cache

    def register(self, memory: Tensor) -> None:
        pass

    def at_boundary(self) -> Point:
        return None

    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor], point: Point) -> Ticket:
        """Neither side requires a gradient."""
        if sources:
            torch._foreach_copy_(targets, sources)  # type: ignore[arg-type]  # any sequence
        return None

    def landed(self, ticket: Ticket) -> None:
        pass

    def gather(self, gather: Gather, addresses: NDArray[numpy.uint64], file: int, offset: int) -> None:
        gather.write(addresses, file, offset)

    def is_true(self, point: Point) -> bool:
        return True

    def abort_begins(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def in_place(self, source: Tensor) -> memoryview | None:
        return as_bytes(source).numpy().data if is_plain(source) and source.device.type == "cpu" else None

    def fence(self) -> None:
        pass

    def same(self, tensor: Tensor, copied: Tensor) -> bool:
        return torch.equal(as_bytes(tensor), as_bytes(copied))


def copy_bytes(source: int, target: int, nbytes: int) -> None:
    """Copies bytes from one address to another. The interpreter's lock is free meanwhile."""
    ctypes.memmove(target, source, nbytes)


def address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns the tensor's bytes, [nbytes] uint8, in row-major order: over its own memory where that is what is_plain says."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def is_plain(tensor: Tensor) -> bool:
    """Returns whether the tensor's memory is its bytes in row-major order, so that they can be written there as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
