"""Where the modules of a model keep their tensors, as the optimizer updates them, whatever form the module shows just now.

FSDP2 puts gathered copies in the place of a module's parameters while it computes, and leaves them there where no backward has
followed (an evaluation, `unshard()`, `reshard_after_forward=False`). The state is in the shards: they are what is named here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

PARAMETER, BUFFER, GRADIENT = "model/", "buffer/", "gradient/"

Shards = dict[tuple[int, str], Any]  # (id of the module, name) -> FSDP2's record of that parameter

_places_in = attrgetter("_parameters", "_buffers", "_modules")
_places_besides = attrgetter("_buffers", "_modules")
_values = methodcaller("values")
_shard_in = attrgetter("sharded_param")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One name under which a module has a tensor, or None. `path`: the key of what lies there, without the shard."""

    path: str
    module: nn.Module
    name: str

    @property
    def is_buffer(self) -> bool:
        return self.path.startswith(BUFFER)

    @property
    def registered(self) -> dict[str, Any]:
        """Returns where the module has its parameters, or its buffers."""
        return self.module._buffers if self.is_buffer else self.module._parameters

    @property
    def is_transient(self) -> bool:
        """Returns whether the module's own state_dict leaves the buffer out."""
        return self.name in self.module._non_persistent_buffers_set

    def put(self, tensor: Tensor | None) -> None:
        """Makes the module have this tensor under this name."""
        other = self.module._parameters if self.is_buffer else self.module._buffers
        other.pop(self.name, None)
        self.module.__dict__.pop(self.name, None)
        self.registered[self.name] = tensor

    def remove(self) -> None:
        self.registered.pop(self.name, None)


def modules_of(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Returns every module of these models by its path, each once, in the order of construction."""
    return {
        f"{name}.{path}" if path else name: module for name, model in models.items() for path, module in model.named_modules()
    }


def places(modules: Mapping[str, nn.Module], shards: Shards) -> Iterator[tuple[Place, Tensor | None]]:
    """Yields each place of these modules with what the state has there."""
    for path, module in modules.items():
        for name, parameter in module._parameters.items():
            record = shards.get((id(module), name))
            shown: Tensor | None = parameter if record is None else record.sharded_param
            yield Place(path=f"{PARAMETER}{path}.{name}", module=module, name=name), shown
        for name, buffer in module._buffers.items():
            yield Place(path=f"{BUFFER}{path}.{name}", module=module, name=name), buffer


def shown(modules: Collection[nn.Module], shards: Shards, whole: Iterable[Place]) -> tuple[list[Any], list[int]]:
    """Returns what these modules have, and under which names; and how many of each kind each of them has. The former is the same,
    one by one, as long as the latter is and nothing has been put in another's place.

    `whole`: the places of parameters that are not among the shards. Called at each boundary: so without a loop over all modules.
    """
    places = list(chain.from_iterable(map(_places_in, modules)))
    found = list(chain.from_iterable(places))
    if shards:
        found += chain.from_iterable(map(_values, chain.from_iterable(map(_places_besides, modules))))
        found += map(_shard_in, shards.values())
        found += [place.registered.get(place.name) for place in whole]
    else:
        found += chain.from_iterable(map(_values, places))
    return found, list(map(len, places))


def shards_of(modules: Iterable[nn.Module]) -> Shards:
    """Returns FSDP2's record of each parameter that it has sharded in these modules."""
    found: Shards = {}
    for group in _parameter_groups(modules):
        for record in group.fsdp_params:
            info = record._module_info
            found[id(info.module), info.param_name] = record
            for module, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                found[id(module), name] = record
    return found


@torch.no_grad()
def drop_gathered(modules: Iterable[nn.Module]) -> None:
    """Has the modules show their shards. What they had gathered is gone, and gathered again when it is needed.

    On every rank alike, or some would gather while others do not: in every restore, and never at a boundary.
    """
    modules = list(modules)
    for module in modules:
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            if state._is_root and hasattr(state, "_reset_iter_state"):
                state._reset_iter_state()  # also what a step that has raised has left half done
    for group in _parameter_groups(modules):
        group._to_sharded()
        group._partial_reduce_output = None
        for record in group.fsdp_params:
            record.unsharded_accumulated_grad = None
            if hasattr(record, "_unsharded_param"):
                record._unsharded_param.grad = None


def unreduced(modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """Yields the paths of FSDP2's parameters whose gradients have not been summed over the ranks yet."""
    paths = {id(module): path for path, module in modules.items()}
    for group in _parameter_groups(modules.values()):
        for record in group.fsdp_params:
            whole = getattr(record, "_unsharded_param", None)
            kept = group._partial_reduce_output, record.unsharded_accumulated_grad, getattr(whole, "grad", None)
            if any(each is not None for each in kept):
                yield f"{paths[id(record._module_info.module)]}.{record._module_info.param_name}"


def conditions(modules: Mapping[str, nn.Module], wrappers: "Wrappers") -> dict[str, Any]:
    """Returns what decides how these modules compute next and lies in no state_dict: which of them train ("1"), whether the next
    forward of each DistributedDataParallel begins with a broadcast of buffers, and whether FSDP2 and it sum gradients.
    """
    return {
        "training": "".join("1" if module.training else "0" for module in modules.values()),
        "broadcasts": [each.require_forward_param_sync for each in wrappers.replicated],
        "sums": [
            *(each.require_backward_grad_sync for each in wrappers.replicated),
            *(flag for group in wrappers.sharded for flag in (group.reduce_grads, group.all_reduce_grads)),
        ],
    }


def restore_conditions(modules: Mapping[str, nn.Module], wrappers: "Wrappers", saved: Mapping[str, Any]) -> None:
    for module, training in zip(modules.values(), saved["training"], strict=True):
        module.training = training == "1"
    for each, broadcasts in zip(wrappers.replicated, saved["broadcasts"], strict=True):
        each.require_forward_param_sync = broadcasts
    sums = iter(saved["sums"])
    for each in wrappers.replicated:
        each.require_backward_grad_sync = next(sums)
    for group in wrappers.sharded:
        group.reduce_grads, group.all_reduce_grads = next(sums), next(sums)


class Wrappers:
    """What among these modules communicates for others: every DistributedDataParallel, and every group of FSDP2's parameters."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        modules = list(modules)
        self.replicated = [each for each in modules if isinstance(each, DistributedDataParallel)]
        self.sharded = [*_parameter_groups(modules)]


def _parameter_groups(modules: Iterable[nn.Module]) -> Iterator[Any]:
    for module in modules:
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.11 had one, or None
            yield from groups if groups is not None else filter(None, (state._fsdp_param_group,))
