"""What optimizers hold: parameters in groups, a state for each, and what only their own state_dict gives.

The state may be kept for a parameter or under a text, as tensors or as lists and dicts of tensors and other values (LBFGS).
Tensors become items, under a path; everything else is metadata.
"""

from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from torch import Tensor
from torch.optim import Optimizer

from deadpool.trainer_hooks.state.storable import decode, encode, tensor_at

STATE = "optimizer/"
_PARTS = ("state", "param_groups")  # of every optimizer's state_dict


class ParameterNames:
    """The name of each parameter, and the parameter of each name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Tensor] = {}
        self._by_id: dict[int, str] = {}

    def add(self, name: str, parameter: Tensor) -> None:
        """Gives the parameter a name unless it has one."""
        if self._by_id.setdefault(id(parameter), name) == name:
            self._by_name[name] = parameter

    def of(self, parameter: Tensor) -> str:
        return self._by_id[id(parameter)]

    def find(self, name: str) -> Tensor | None:
        return self._by_name.get(name)

    def __contains__(self, parameter: object) -> bool:
        return id(parameter) in self._by_id


def with_nested(optimizers: Mapping[str, Optimizer]) -> dict[str, Optimizer]:
    """Returns the optimizers and those that they wrap, each once, by name and the path of attributes that leads to it."""
    found: dict[str, Optimizer] = {}
    for name, optimizer in optimizers.items():
        _add_nested(name, optimizer, found)
    return found


def _add_nested(name: str, value: Any, found: dict[str, Optimizer]) -> None:
    if isinstance(value, Optimizer):
        if any(value is known for known in found.values()):
            return
        found[name] = value
        for attribute, part in vars(value).items():
            if attribute not in _PARTS:
                _add_nested(f"{name}.{attribute}", part, found)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            if isinstance(part, Optimizer):
                _add_nested(f"{name}.{index}", part, found)
    elif isinstance(value, dict):
        for key, part in value.items():
            if isinstance(part, Optimizer):
                _add_nested(f"{name}.{quoted(key)}", part, found)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def kept_for(optimizer: Optimizer, names: ParameterNames, *, besides: Set[int] = frozenset()) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, key, value) for everything in the optimizer's state; the name is that of a parameter, or =TEXT.

    A parameter that is in no group and in no model has none, and is left out (coverage.py says so). `besides`: ids of values
    that are left out.
    """
    for key, value in optimizer.state.items():
        if id(value) in besides:
            continue
        if isinstance(key, Tensor):
            if key in names:
                yield names.of(key), key, value
        else:
            yield f"={quoted(key)}", key, value


def state_tensors(name: str, optimizer: Optimizer, names: ParameterNames) -> Iterator[tuple[str, Tensor]]:
    """Yields each tensor of the optimizer's state with its path."""
    for owner, _, value in kept_for(optimizer, names):
        parts = value.items() if isinstance(value, dict) else (("", value),)
        for entry, part in parts:
            for path, tensor in _tensors(part, quoted(entry)):
                yield f"{STATE}{name}/{owner}/{path}", tensor


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif _is_tree(value):
        for key, part in value.items() if type(value) is dict else enumerate(value):
            yield from _tensors(part, f"{path}.{quoted(key)}")


def plain_states(optimizer: Optimizer) -> dict[int, dict[str, Tensor]]:
    """Returns what is kept for parameters and is a dict of tensors and nothing else, by its id."""
    return {
        id(kept): kept
        for kept in optimizer.state.values()
        if isinstance(kept, dict) and all(is_plain_entry(entry, value) for entry, value in kept.items())
    }


def tensors_in(kept: Any) -> list[Tensor]:
    """Returns the tensors in what is kept for a parameter that are items."""
    parts = kept.values() if isinstance(kept, dict) else (kept,)
    return [tensor for part in parts for _, tensor in _tensors(part, "")]


def _is_tree(value: Any) -> bool:
    """Returns whether tensors in the value are items of their own."""
    return type(value) in (list, tuple) or (type(value) is dict and all(type(key) in (str, int) for key in value))


def capture(name: str, optimizer: Optimizer, names: ParameterNames, plain: Set[int], left_out: list[str]) -> dict[str, Any]:
    """Returns a storable copy of all that is not an item: values of groups and state, and what state_dict says beyond both.

    `plain`: ids of what is kept for a parameter and known to be items and nothing else.
    """
    groups = [
        {key: encode(value, f"{name}.param_groups[{index}]/{key}", left_out) for key, value in group.items() if key != "params"}
        for index, group in enumerate(optimizer.param_groups)
    ]
    all_plain = all(map(plain.__contains__, map(id, optimizer.state.values())))
    state = {
        owner: kept
        for owner, _, value in (() if all_plain else kept_for(optimizer, names, besides=plain))
        if (kept := _encoded(name, owner, value, left_out)) is not None
    }
    try:
        own = own_parts(optimizer)
    except Exception as error:  # the optimizer's own code
        own = {}
        left_out.append(f"{name}.state_dict(): it fails: {error!r}")
    return {"groups": groups, "state": state, "own": encode(own, f"{name}.state_dict()", left_out)}


def _encoded(name: str, owner: str, value: Any, left_out: list[str]) -> Any:
    """Returns what beside plain entries that are tensors is kept, as {entry: value} or [value]; None when that is nothing."""
    where = f"{name}.state[{owner}]"
    if not isinstance(value, dict):
        return [_skeleton(value, where, "", left_out)]
    rest = {
        entry: _skeleton(part, f"{where}/{entry}", quoted(entry), left_out)
        for entry, part in value.items()
        if not is_plain_entry(entry, part)
    }
    return rest if rest or owner.startswith("=") else None


def is_plain_entry(entry: Any, value: Any) -> bool:
    """Returns whether the item's key alone says where the tensor belongs."""
    return isinstance(value, Tensor) and type(entry) is str and entry.isidentifier()


def _skeleton(value: Any, where: str, path: str, left_out: list[str]) -> Any:
    """Returns the encoded value with paths where it has tensors, the same ones as _tensors gives."""
    if isinstance(value, Tensor):
        return tensor_at(path)
    if not _is_tree(value):
        return encode(value, where, left_out)
    if type(value) is dict:
        return {key: _skeleton(part, f"{where}/{key}", f"{path}.{quoted(key)}", left_out) for key, part in value.items()}
    return type(value)(_skeleton(part, f"{where}/{index}", f"{path}.{index}", left_out) for index, part in enumerate(value))


def own_parts(optimizer: Optimizer) -> dict[str, Any]:
    """Returns what the optimizer's own state_dict gives beside state and groups. Optimizers that it wraps say their own."""
    if not says_more(optimizer):
        return {}
    return {key: value for key, value in optimizer.state_dict().items() if key not in _PARTS}


def says_more(optimizer: Optimizer) -> bool:
    """Returns whether state_dict is not torch's own. One that must be gathered first (ZeRO's) is that of what it wraps."""
    if hasattr(optimizer, "consolidate_state_dict"):
        return False
    return type(optimizer).state_dict is not Optimizer.state_dict or bool(optimizer._optimizer_state_dict_post_hooks)


def restore_own_parts(optimizer: Optimizer, saved: Any) -> None:
    """Gives the optimizer's own load_state_dict what `own_parts` has found; state and groups are made to fit afterwards."""
    if saved:
        live = own_parts(optimizer)
        optimizer.load_state_dict({**optimizer.state_dict(), **decode(saved, live)})


def restore_groups(optimizer: Optimizer, saved: list[dict[str, Any]]) -> None:
    """Sets the groups' values, in place where they are tensors."""
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        live = {key: value for key, value in group.items() if key != "params"}
        wanted = decode(values, live)
        for key in live.keys() - values.keys():
            del group[key]
        for key, value in wanted.items():
            now = group.get(key)
            if isinstance(value, Tensor) and isinstance(now, Tensor) and (now.shape, now.dtype) == (value.shape, value.dtype):
                now.copy_(value)
            else:
                group[key] = value


@lru_cache(maxsize=1024)
def quoted(key: object) -> str:
    return quote(str(key), safe="#_-[]() ")
