"""Tensors of the state, and the keys under which they are known.

Tensors of two kinds. *Steady* ones change only inside optimizer.step (parameters, optimizer state): they are copied in the
background while the next step computes. *Volatile* ones may change at any moment (buffers such as running means, averages of the
weights): they are cloned at the boundary.

A key is a path, and for a DTensor the place of the local shard in the whole: two ranks with the same key claim to hold the same
bytes. Whether that is true is checked by checksum (protection/peers.py), never assumed.

    model/NAME.PATH          a parameter; NAME is that of the model, or of the optimizer that has it and no model does
    buffer/NAME.PATH         a buffer
    gradient/NAME.PATH       a parameter's gradient, where a step has left it for a later one to use
    optimizer/NAME/OF/ENTRY  of an optimizer's state; OF is the parameter's NAME.PATH, or =KEY for what is kept under a text
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from deadpool.trainer_hooks.torch_internals import local_place


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One tensor of the state as the process holds it: `tensor` is plain and local, shares memory with the user's."""

    key: str
    tensor: Tensor
    volatile: bool


def local_part(tensor: Tensor) -> Tensor:
    """Returns the tensor that has the bytes which this process holds."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def shard_of(tensor: Tensor) -> str:
    """Returns "" for a plain tensor, "@offset+shape" of the local part for a DTensor."""
    if not isinstance(tensor, DTensor):
        return ""
    shape, offset = local_place(tensor)
    return f"@{','.join(map(str, offset))}+{','.join(map(str, shape))}"


def put(target: Tensor, values: Tensor) -> None:
    """Writes the values into the tensor, once where it repeats one element along a dimension (expand())."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:
            target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    target.copy_(values)


def path_of(key: str) -> str:
    """Returns the key without the shard."""
    return key.partition("@")[0]


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def type_of(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
