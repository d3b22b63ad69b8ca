"""How much state an optimizer will hold once it has stepped: asked of the optimizer itself, on tensors without memory."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.proto.vault.layout import aligned
from deadpool.trainer_hooks.state.items import local_part
from deadpool.trainer_hooks.state.storable import encode

_TENSORS_IF_UNKNOWN = 2  # what Adam holds for each parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What the first step adds to the state of optimizers. `unstorable`: "path: what it is" of what a snapshot cannot hold."""

    items: int
    size_bytes: int
    unstorable: tuple[str, ...]


def expected_growth(optimizers: Mapping[str, Optimizer]) -> Growth:
    """Returns what the first step will add to the state of these optimizers. On any thread: it touches nothing."""
    items = size_bytes = 0
    unstorable: list[str] = []
    for name, optimizer in optimizers.items():
        fresh = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if not optimizer.state.get(parameter)
        ]
        if not fresh or (optimizer.state == {} and _wraps_another(optimizer)):
            continue
        for tensor in _tensors_after_a_step(name, optimizer, fresh, unstorable):
            items += 1
            size_bytes += aligned(tensor.numel() * tensor.element_size())
    return Growth(items=items, size_bytes=size_bytes, unstorable=tuple(unstorable))


def _wraps_another(optimizer: Optimizer) -> bool:
    return any(isinstance(value, Optimizer) for value in vars(optimizer).values())


def _tensors_after_a_step(name: str, optimizer: Optimizer, parameters: list[Tensor], unstorable: list[str]) -> list[Tensor]:
    """Returns the state tensors (without memory) that one step makes for these parameters.

    The step runs on a copy of the optimizer with parameters on the meta device. An optimizer that cannot run there (it looks at
    values, it wants to be told that training begins) or that cannot be copied is taken to hold as much as Adam.
    """
    stand_ins = {parameter: _on_meta(parameter) for parameter in parameters}
    try:
        clone = _clone(optimizer, stand_ins)
        type(clone).step(clone)
    except Exception:  # whatever it is, the estimate is all that it costs
        return [stand_in for stand_in in stand_ins.values() for _ in range(_TENSORS_IF_UNKNOWN)]
    found: list[Tensor] = []

    def on_tensor(path: str, tensor: Tensor) -> None:
        found.append(tensor)

    encode(list(clone.state.values()), f"{name}.state", unstorable, on_tensor=on_tensor)
    return found


def _clone(optimizer: Optimizer, stand_ins: dict[Tensor, Tensor]) -> Optimizer:
    """Returns a copy that shares nothing with the optimizer which a step might change, with these parameters in its groups."""
    memo = {id(parameter): stand_in for parameter, stand_in in stand_ins.items()}
    clone: Optimizer = object.__new__(type(optimizer))  # copy() would change the defaults, which both have (__setstate__)
    clone.__dict__ = {
        name: value if name in ("state", "param_groups") or callable(value) else deepcopy(value, memo)
        for name, value in vars(optimizer).items()
        if not name.startswith("_optimizer_")  # hooks
    }
    clone.state = defaultdict(dict)
    clone.param_groups = [
        {**deepcopy({key: value for key, value in group.items() if key != "params"}), "params": kept}
        for group in optimizer.param_groups
        if (kept := [stand_ins[parameter] for parameter in group["params"] if parameter in stand_ins])
    ]
    clone._optimizer_step_pre_hooks, clone._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    return clone


def _on_meta(parameter: Tensor) -> Tensor:
    local = local_part(parameter)
    stand_in = nn.Parameter(torch.empty(local.shape, dtype=local.dtype, device="meta"))
    stand_in.grad = torch.empty_like(stand_in)
    return stand_in
