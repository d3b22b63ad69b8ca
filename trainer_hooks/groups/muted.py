"""How a muted collective is answered: as if every member had the caller's values.

Used by a joiner that constructs and rehearses alone, and by every rank from the break of a generation to its step's boundary. A
step runs to its end on such values and is thrown away. They must keep it going, not be right: outputs are filled with
plausible numbers instead of being left uninitialised, where user code would see NaN or absurd sizes.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

Answer = Callable[[int, int, tuple[Any, ...]], None]  # (rank, size, the collective's arguments)

# The functions of c10d that receive sizes into uninitialised tensors and then allocate what they say.
_RECEIVE_SIZES = ("broadcast_object_list", "recv_object_list")


def answer(operation: str, rank: int, size: int, args: tuple[Any, ...]) -> None:
    """Fills the collective's outputs; a collective that is not known here leaves its tensors as they are."""
    fill = _ANSWERS.get(operation)
    if fill is not None:
        fill(rank, size, args)
    elif operation in ("broadcast", "recv", "recv_anysource"):
        clear_sizes(args)


def clear_sizes(args: tuple[Any, ...]) -> None:
    """Zeroes the tensors of `args` when c10d is about to receive object sizes into them.

    Left alone they would be uninitialised memory, and c10d would try to allocate as many bytes as it says. Looks at the
    caller's frames: scripts import these functions by name, so that replacing them would not reach everyone.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return
        if frame.f_code.co_name in _RECEIVE_SIZES and frame.f_code.co_filename == dist.distributed_c10d.__file__:
            for tensor in tensors_in(args[0]):
                if not tensor.is_floating_point():
                    tensor.data.zero_()
            return
        frame = frame.f_back


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a tensor or of nested lists of tensors, flat."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies as much as fits. Through `.data`: a collective neither asks for gradients nor counts as a new version."""
    target, source = target.data, source.data
    if target.data_ptr() == source.data_ptr():
        return
    if target.shape == source.shape:
        target.copy_(source)
    elif target.is_contiguous():
        count = min(target.numel(), source.numel())
        target.view(-1)[:count].copy_(source.reshape(-1)[:count])


def _chunk(tensor: torch.Tensor, index: int, size: int) -> torch.Tensor:
    count = tensor.numel() // size
    return tensor.data.reshape(-1)[index * count : (index + 1) * count]


def _gather_lists(rank: int, size: int, args: tuple[Any, ...]) -> None:
    """allgather, gather: outputs is a list of lists (one list per input), inputs a list; or one list and one tensor."""
    outputs, inputs = args[0], args[1]
    if isinstance(inputs, torch.Tensor):
        outputs, inputs = [outputs], [inputs]
    for slots, own in zip(outputs, inputs, strict=False):
        for slot in tensors_in(slots):
            _copy(slot, own)


def _gather_coalesced(rank: int, size: int, args: tuple[Any, ...]) -> None:
    """allgather_coalesced: outputs holds one list per rank, each as long as inputs."""
    for slots in args[0]:
        for slot, own in zip(slots, args[1], strict=False):
            _copy(slot, own)


def _gather_single(rank: int, size: int, args: tuple[Any, ...]) -> None:
    for output, own in zip(tensors_in(args[0]), tensors_in(args[1]), strict=False):
        if output.is_contiguous():
            for index in range(size):
                _copy(_chunk(output, index, size), own.data.reshape(-1))


def _scatter_lists(rank: int, size: int, args: tuple[Any, ...]) -> None:
    """reduce_scatter, scatter: inputs is a list of lists. On a rank that is not a scatter's root it is empty: zeros come."""
    outputs, inputs = tensors_in(args[0]), args[1]
    if not inputs:
        for output in outputs:
            output.data.zero_()
    if inputs and isinstance(inputs[0], torch.Tensor):
        inputs = [inputs]
    for output, chunks in zip(outputs, inputs, strict=False):
        _copy(output, chunks[rank])


def _scatter_single(rank: int, size: int, args: tuple[Any, ...]) -> None:
    for output, given in zip(tensors_in(args[0]), tensors_in(args[1]), strict=False):
        _copy(output, _chunk(given, rank, size))


def _all_to_all(rank: int, size: int, args: tuple[Any, ...]) -> None:
    for output, given in zip(tensors_in(args[0]), tensors_in(args[1]), strict=False):
        _copy(output, given)


_ANSWERS: dict[str, Answer] = {
    "allgather": _gather_lists,
    "gather": _gather_lists,
    "allgather_coalesced": _gather_coalesced,
    "_allgather_base": _gather_single,
    "all_gather_single": _gather_single,
    "all_gather_single_coalesced": _gather_single,
    "allgather_into_tensor_coalesced": _gather_single,
    "reduce_scatter": _scatter_lists,
    "scatter": _scatter_lists,
    "_reduce_scatter_base": _scatter_single,
    "reduce_scatter_single": _scatter_single,
    "reduce_scatter_single_coalesced": _scatter_single,
    "reduce_scatter_tensor_coalesced": _scatter_single,
    "alltoall": _all_to_all,
    "alltoall_base": _all_to_all,
    "all_to_all_single": _all_to_all,
}
# In these every member ends with the same or with its own value: the caller's own is already in place.
LEAVES_TENSORS: Sequence[str] = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_anysource", "barrier", "monitored_barrier",
)  # fmt: skip
KNOWN = frozenset(_ANSWERS) | frozenset(LEAVES_TENSORS)
