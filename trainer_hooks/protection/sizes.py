"""How much state an optimizer will hold once it has stepped: asked of the optimizer itself, on tensors without memory."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from copy import copy

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

_TENSORS_IF_UNKNOWN = 2  # what Adam holds for each parameter


def expected_growth(optimizers: Iterable[Optimizer]) -> tuple[int, int]:
    """Returns (items, bytes) that the first step will add to the state of these optimizers."""
    items = size_bytes = 0
    for optimizer in optimizers:
        fresh = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if not optimizer.state.get(parameter)
        ]
        if not fresh or (optimizer.state == {} and _wraps_another(optimizer)):
            continue
        for tensor in _tensors_after_a_step(optimizer, fresh):
            items += 1
            size_bytes += tensor.numel() * tensor.element_size() + 64
    return items, size_bytes


def _wraps_another(optimizer: Optimizer) -> bool:
    return any(isinstance(value, Optimizer) for value in vars(optimizer).values())


def _tensors_after_a_step(optimizer: Optimizer, parameters: list[Tensor]) -> list[Tensor]:
    """Returns the state tensors (without memory) that one step makes for these parameters.

    The step runs on a copy of the optimizer with parameters on the meta device. An optimizer that cannot run there (it looks at
    values) is taken to hold as much as Adam.
    """
    stand_ins = {parameter: _on_meta(parameter) for parameter in parameters}
    clone = copy(optimizer)
    clone.state = defaultdict(dict)
    clone.param_groups = [
        {**group, "params": [stand_ins[p] for p in group["params"] if p in stand_ins]} for group in optimizer.param_groups
    ]
    clone._optimizer_step_pre_hooks, clone._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    try:
        type(clone).step(clone)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return [stand_in for stand_in in stand_ins.values() for _ in range(_TENSORS_IF_UNKNOWN)]
    return [value for entries in clone.state.values() for value in entries.values() if isinstance(value, Tensor)]


def _on_meta(parameter: Tensor) -> Tensor:
    local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    stand_in = nn.Parameter(torch.empty(local.shape, dtype=local.dtype, device="meta"))
    stand_in.grad = torch.empty_like(stand_in)
    return stand_in
