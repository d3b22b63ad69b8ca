"""Clones of tensors that may change at any moment. One that has not changed since the boundary before keeps the clone it has."""

import torch
from torch import Tensor

from deadpool.trainer_hooks.protection.copy_engine import as_bytes, is_plain

_WORTH_COMPARING_BYTES = 64 << 10  # a smaller one is cloned in less time


class Clones:
    """Of the tensors that a process holds, by index. A clone is never written to: states that follow each other may share it."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, Tensor]] = {}

    def of(self, index: int, tensor: Tensor) -> Tensor:
        """Returns a tensor with the bytes that this one has now. Main thread."""
        if tensor.nbytes < _WORTH_COMPARING_BYTES or tensor.device.type != "cpu" or not is_plain(tensor):
            return tensor.clone()
        version, known = self._kept.get(index, (-1, tensor))
        # a version that has moved says that it was written to; one that has not says nothing: .data, collectives, batch norm
        if version != tensor._version or known.shape != tensor.shape or known.dtype != tensor.dtype or not _same(tensor, known):
            known = tensor.clone()
            self._kept[index] = tensor._version, known
        return known


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(as_bytes(one), as_bytes(other))
