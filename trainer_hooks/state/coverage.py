"""Is what is captured what the frameworks themselves would save? What is not is named, before a commit relies on it.

Compared once for each set of tensors, with the frameworks' own views: each tensor of the models' and optimizers' state_dict lies
in memory that a held tensor covers, or is metadata.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from deadpool.trainer_hooks.state.extras import Stateful
from deadpool.trainer_hooks.state.inventory import First, Inventory
from deadpool.trainer_hooks.state.items import local_part
from deadpool.trainer_hooks.state.modules import PARAMETER
from deadpool.trainer_hooks.state.optimizers import says_more
from deadpool.trainer_hooks.torch_internals import ddp_joined

_Schedulers = (LRScheduler, ReduceLROnPlateau)


def gaps(found: Inventory, first: First, models: Mapping[str, nn.Module], extra: Mapping[str, Stateful]) -> list[str]:
    """Returns "path: what it is" for all that belongs to the state and is not captured, or that a new process could not make."""
    memory = _Memory(found)
    return [
        *found.unfit,
        *_late(found, first),
        *(gap for name, model in models.items() for gap in _model_gaps(name, model, found, memory)),
        *(gap for name, optimizer in found.optimizers.items() for gap in _optimizer_gaps(name, optimizer, found, memory)),
        *_scheduler_gaps(found, extra),
    ]


def _late(found: Inventory, first: First) -> Iterator[str]:
    for path in found.modules.keys() - first.modules:
        yield f"{path}: a module that was added after protect(); make it before, a new process cannot"
    for path, tensor in found.tensors.items():
        if path.startswith(PARAMETER) and path not in first.forms:
            if isinstance(tensor, DTensor):
                yield f"{path}: a sharded parameter that was added after protect(); make it before, a new process cannot"
            elif path.rpartition(".")[2].startswith("#"):
                yield f"{path}: a parameter of the optimizer that is in no model, added after protect(); make it before"


def _model_gaps(name: str, model: nn.Module, found: Inventory, memory: "_Memory") -> Iterator[str]:
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        yield f"{name}: FullyShardedDataParallel (FSDP1) swaps its memory as it computes; use torch.distributed.fsdp.fully_shard"
        return
    if any(isinstance(module, DistributedDataParallel) and ddp_joined(module) for module in model.modules()):
        yield f"{name}: within DDP's join() others answer for a rank that has left; give each rank as many batches as the others"
    try:
        if any(isinstance(module, FSDPModule) for module in model.modules()):
            saved = _saved_by_modules(name, found)  # its own state_dict would drop what it has gathered
        else:
            saved = model.state_dict(keep_vars=True, prefix=f"{name}.")
    except Exception as error:  # the model's own code
        yield f"{name}: its state_dict() fails: {error!r}"
        return
    for path, value in saved.items():
        if isinstance(value, Tensor) and not _is_known(path, found) and not memory.covers(value):
            yield f"{path}: a tensor of the model's state_dict that is neither parameter nor buffer"


def _saved_by_modules(name: str, found: Inventory) -> dict[str, Any]:
    saved: dict[str, Any] = {}
    for path, module in found.modules.items():
        if path.partition(".")[0] == name and type(module)._save_to_state_dict is not nn.Module._save_to_state_dict:
            module._save_to_state_dict(saved, f"{path}.", keep_vars=True)
    return saved


def _is_known(path: str, found: Inventory) -> bool:
    return f"model/{path}" in found.places or f"buffer/{path}" in found.places or path.endswith("._extra_state")


def _optimizer_gaps(name: str, optimizer: Optimizer, found: Inventory, memory: "_Memory") -> Iterator[str]:
    for index, key in enumerate(optimizer.state):
        if isinstance(key, Tensor) and key not in found.names:
            yield f"{name}.state: it keeps something for a parameter that is in no group and no model (number {index})"
    try:
        saved = optimizer.state_dict() if says_more(optimizer) else {}
    except Exception:  # optimizers.capture has named it
        return
    for path, tensor in _tensors(saved.get("state", {}), f"{name}.state_dict()/state"):
        if not memory.covers(tensor):
            yield f"{path}: a tensor that only the optimizer's state_dict has"


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (Mapping, list, tuple)):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(part, f"{path}/{key}")


def _scheduler_gaps(found: Inventory, extra: Mapping[str, Stateful]) -> Iterator[str]:
    """A scheduler wraps its optimizer's step; one that is not registered would be ahead after a recovery."""
    known = [each for value in extra.values() for each in _schedulers_in(value, depth=2)]
    for name, optimizer in found.optimizers.items():
        if getattr(optimizer.step, "_wrapped_by_lr_sched", False) and not any(
            any(one is optimizer for one in (each.optimizer, *vars(each.optimizer).values())) for each in known
        ):
            yield f"{name}: its learning-rate scheduler is not in protect(extra=...); make it before protect() and pass it"


def _schedulers_in(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, _Schedulers):
        yield value
    elif depth and hasattr(value, "__dict__"):
        for part in vars(value).values():
            for each in part if isinstance(part, (list, tuple)) else (part,):
                yield from _schedulers_in(each, depth - 1)


class _Memory:
    """The memory that held tensors cover."""

    def __init__(self, found: Inventory) -> None:
        ranges = sorted(
            ((str(held.tensor.device), held.tensor.data_ptr(), held.tensor) for held in found.held), key=lambda row: row[:2]
        )
        self._begins = [(device, begin) for device, begin, _ in ranges]
        self._ends = [begin + _extent(tensor) for _, begin, tensor in ranges]

    def covers(self, tensor: Tensor) -> bool:
        local = local_part(tensor)
        begin = local.data_ptr()
        index = bisect_right(self._begins, (str(local.device), begin)) - 1
        if not local.numel():
            return True
        return index >= 0 and self._begins[index][0] == str(local.device) and begin + _extent(local) <= self._ends[index]


def _extent(tensor: Tensor) -> int:
    """Returns the bytes from the first element to the end of the last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
