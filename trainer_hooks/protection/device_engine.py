"""Copies tensors off a device: a stream beside the one that trains copies into pinned host memory, ordered by marks alone.

    main:    ... step k ... | point of S_k+1 | step k+1: forward, backward ...     | fence | optimizer.step
    beside:                   `--follows----> gather, copy, mark, gather, copy, mark --^
    host:                                     the protect thread waits for each mark, and takes the checksums behind it

Neighbours in the slot are gathered on the device first, in one kernel for each type, and leave it as one piece.

A state counts only if the device had come to its point before the groups of its generation were aborted: what runs behind an
aborted collective computes on garbage, and ends as if nothing had been.
"""

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import groupby

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from deadpool.trainer_hooks.device import CudaDevice, Device, Mark
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine, Engine, Point, Ticket, as_bytes
from deadpool.trainer_hooks.protection.gather import Gather

_ALIGNED = 64  # bytes: neighbours in a slot lie no farther apart
_PIECE_BYTES = 64 << 20  # of device memory that a comparison needs
_POINTS = 4  # more than there are states of which a copy is under way


def engine_for(device: torch.device) -> Engine:
    return DeviceEngine(CudaDevice(device)) if device.type == "cuda" else CpuEngine()


class DeviceEngine:
    copies_later = True
    group_bytes = 32 << 20

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._points: deque[_Point] = deque(maxlen=_POINTS)
        self._aborted = False
        self._last: Mark | None = None  # of the copies so far
        self._staging: Tensor | None = None

    def register(self, memory: Tensor) -> None:
        self._device.pin(memory)

    # ------------------------------------------------------------ what counts

    def at_boundary(self) -> Point:
        point = _Point(self._device.mark())
        with self._lock:
            point.lost = self._aborted
            self._points.append(point)
        return point

    def abort_begins(self) -> None:
        with self._lock:
            self._aborted = True
            for point in self._points:
                point.lost = point.lost or not point.mark.reached()

    def begin(self) -> None:
        with self._lock:
            self._aborted = False

    def is_true(self, point: Point) -> bool:
        assert isinstance(point, _Point)
        point.mark.wait()
        with self._lock:
            return not point.lost

    # ------------------------------------------------------------ copies

    @torch.no_grad()
    def copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor], point: Point) -> Ticket:
        assert isinstance(point, _Point)
        device = self._device
        device.follow(point.mark, beside=True)
        for on_device, pairs in groupby(zip(sources, targets, strict=True), key=lambda pair: device.has(pair[0])):
            run = list(pairs)
            if not on_device:
                for source, target in run:
                    target.copy_(source)
            elif len(run) > 1 and (place := _place_of([target for _, target in run])) is not None:
                self._gather(run, place)
            else:
                for source, target in run:
                    device.run(partial(_copy, source, target), [source])
        self._last = device.mark(beside=True)
        return self._last

    def gather(self, gather: Gather, addresses: NDArray[numpy.uint64], file: int, offset: int) -> None:
        raise AssertionError("all copies come later")

    def landed(self, ticket: Ticket) -> None:
        assert ticket is not None
        ticket.wait()

    def fence(self) -> None:
        if self._last is not None:
            self._device.follow(self._last)

    def in_place(self, source: Tensor) -> memoryview | None:
        return None

    def same(self, tensor: Tensor, copied: Tensor) -> bool:
        if self._last is not None:
            self._last.wait()
        pairs = zip(torch.split(as_bytes(tensor), _PIECE_BYTES), torch.split(as_bytes(copied), _PIECE_BYTES), strict=True)
        return all(torch.equal(piece, there.to(piece.device, non_blocking=True)) for piece, there in pairs)

    def _gather(self, run: Sequence[tuple[Tensor, Tensor]], place: Tensor) -> None:
        """Copies neighbours by way of the staging buffer, where they lie as they will in the slot."""
        if self._staging is None or self._staging.numel() < place.numel():
            self._staging = self._device.buffer(max(place.numel(), self.group_bytes))
        staging, begin = self._staging[: place.numel()], place.data_ptr()
        pieces = [(source, _part(staging, target.data_ptr() - begin, target)) for source, target in run if target.numel()]

        def work() -> None:
            for _, alike in groupby(sorted(pieces, key=lambda each: str(each[0].dtype)), key=lambda each: each[0].dtype):
                some = list(alike)
                torch._foreach_copy_([staged for _, staged in some], [source for source, _ in some])
            place.copy_(staging, non_blocking=True)

        self._device.run(work, [source for source, _ in pieces])


class _Point:
    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.lost = False


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _place_of(targets: Sequence[Tensor]) -> Tensor | None:
    """Returns the memory from the first to the last of these, [nbytes] uint8; None where they are no neighbours."""
    end = begin = targets[0].data_ptr()
    for target in targets:
        if target.numel() and not 0 <= target.data_ptr() - end < _ALIGNED:
            return None
        end = max(end, target.data_ptr() + target.nbytes)
    if end == begin:
        return None
    storage = targets[0].untyped_storage()
    place: Tensor = torch.empty(0, dtype=torch.uint8).set_(storage, begin - storage.data_ptr(), (end - begin,), (1,))
    return place


def _part(memory: Tensor, begin: int, like: Tensor) -> Tensor:
    return memory[begin : begin + like.nbytes].view(like.dtype).view(like.shape)
