"""Gloo's reduce_scatter as Gloo makes it: an all_reduce of a copy, of which each member takes its part.

The work that Gloo hands out for it can neither be waited for in slices nor be asked whether it has ended, so that a thread would
have to wait for it (works.py), which takes longer than the call. That of an all_reduce can. The results are the same to the bit
(tests/unit/trainer_hooks/groups/test_reduce_scatter.py).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

OPERATIONS = frozenset({"_reduce_scatter_base", "reduce_scatter_single"})
Finish = Callable[[], None]


def begin(inner: Any, args: tuple[Any, ...], rank: int, size: int) -> tuple[dist.Work, Finish] | None:
    """Begins it and returns the all_reduce, and what fills the output once that has ended; None where Gloo is to do it itself.

    `args`: of the call. RuntimeError as Gloo raises it.
    """
    output, given, *more = args
    options = more[0] if more else dist.ReduceScatterOptions()
    if len(more) > 1 or not isinstance(options, dist.ReduceScatterOptions) or not _are_alike(output, given, size):
        return None
    whole = dist.AllreduceOptions()
    whole.reduceOp, whole.timeout = options.reduceOp, options.timeout
    summed = given.detach().clone(memory_format=torch.contiguous_format)
    work: dist.Work = inner.allreduce([summed], whole)

    def finish() -> None:  # `.data`: a collective neither asks for gradients nor counts as a new version
        output.data.copy_(summed.chunk(size)[rank])

    return work, finish


def _are_alike(output: Any, given: Any, size: int) -> bool:
    """Returns whether these are tensors of the host, one of which has the parts of all members along its first dimension."""
    return (
        isinstance(output, torch.Tensor)
        and isinstance(given, torch.Tensor)
        and output.device.type == given.device.type == "cpu"
        and output.layout is given.layout is torch.strided
        and output.dtype == given.dtype
        and output.dim() > 0
        and output.numel() > 0
        and given.shape == (size * output.shape[0], *output.shape[1:])
    )
