"""Makes a process hold what a state says: the same objects where they fit, new ones where they do not, and nothing more.

A survivor of a step that replaced a buffer or added a parameter goes back before it; a joiner, whose rehearsal was two other
steps, gets what the state has. Values are not written here, but for those that optimizers keep beside tensors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.optim import Optimizer

from deadpool.host.errors import SnapshotError
from deadpool.proto.vault.layout import Item
from deadpool.trainer_hooks.state.inventory import First, Inventory
from deadpool.trainer_hooks.state.items import local_part, path_of, shard_of, type_name, type_of
from deadpool.trainer_hooks.state.modules import BUFFER, GRADIENT, PARAMETER, Place
from deadpool.trainer_hooks.state.optimizers import STATE, kept_for, restore_own_parts, state_tensors
from deadpool.trainer_hooks.state.storable import decode, item_paths
from deadpool.trainer_hooks.state.structure import Kind, Structure

_PLACEMENTS: dict[str, Any] = {"Shard": Shard, "Replicate": Replicate, "Partial": Partial, "_StridedShard": _StridedShard}


class Fitting:
    """One process that is made to hold `items`. `live`: what it holds before; stale once anything was changed."""

    def __init__(self, live: Inventory, first: First, items: Mapping[str, Item], structure: Structure) -> None:
        self._live, self._first, self._structure = live, first, structure
        self._wanted = {path_of(key): item for key, item in items.items()}
        self._used: set[int] = set()  # tensors that have a path already
        self._fitted: dict[str, Tensor] = {}  # of the optimizers' state

    # ------------------------------------------------------------ modules

    def fit_modules(self) -> None:
        """Gives every module the parameters and buffers that the state has, and no others."""
        self._fit_module_tree()
        for path, place in self._live.places.items():
            if path in self._structure.empty:
                place.put(None)
            elif path not in self._wanted and path not in self._structure.ties:
                place.remove()
        for path, item in self._wanted.items():
            if path.startswith((PARAMETER, BUFFER)):
                self._fit_module_tensor(path, item)
        for path, first in self._structure.ties.items():
            if path.startswith((PARAMETER, BUFFER)) and not _is_own(path):
                self._tie(path, first)
        for path in self._structure.empty:
            if path not in self._live.places:
                self._place(path).put(None)

    def _fit_module_tree(self) -> None:
        modules = self._live.modules
        if missing := [path for path in self._structure.modules if path not in modules]:
            raise SnapshotError(
                f"the snapshot is of another model: it has {missing[0]}; a restore cannot make modules, only what is in them"
            )
        known = set(self._structure.modules)
        for path in modules.keys() - known:
            parent, _, name = path.rpartition(".")
            if parent in known:
                del modules[parent]._modules[name]

    def _fit_module_tensor(self, path: str, item: Item) -> None:
        live = self._live.tensors.get(path)
        frozen = path in self._structure.frozen
        fits = live is not None and self._fits(live, item)
        now = live if fits and live is not None else self._replace(path, item, live, frozen=frozen)
        self._used.add(id(now))
        if path.startswith(PARAMETER) and now.requires_grad is frozen:
            now.requires_grad_(not frozen)

    def _replace(self, path: str, item: Item, now: Tensor | None, *, frozen: bool) -> Tensor:
        """Puts a new tensor there and returns it. A parameter stays the same object: optimizers and wrappers know it as that."""
        may_differ = now is None or path in self._structure.reshaped or self._first.has_other_form(path, now)
        if isinstance(now, DTensor) or "@" in item.key or not (may_differ or self._has_form(now, item)):
            raise SnapshotError(f"the snapshot is of another model: {item.key} does not fit {_described(path, now)}")
        made = self._make(path, item, None)
        if isinstance(now, nn.Parameter) and id(now) not in self._used:
            now.data = made
            return now
        if _is_own(path):
            raise SnapshotError(f"the snapshot is of another model: it has {path}")
        place = self._place(path)
        if place.is_buffer:
            names = place.module._non_persistent_buffers_set
            names.add(place.name) if path in self._structure.transient else names.discard(place.name)
        else:
            made = nn.Parameter(made, requires_grad=not frozen)
        place.put(made)
        return made

    def _tie(self, path: str, first: str) -> None:
        place, other = self._place(path), self._live.places.get(first) or self._place(first)
        if place.registered.get(place.name) is not other.registered[other.name]:
            place.put(other.registered[other.name])

    def _place(self, path: str) -> Place:
        module_path, name = _module_path(path), path.rpartition(".")[2]
        if module_path not in self._live.modules:
            raise SnapshotError(f"the snapshot is of another model: it has {path}")
        return self._live.places.get(path) or Place(path=path, module=self._live.modules[module_path], name=name)

    # ------------------------------------------------------------ optimizers

    def fit_optimizers(self, saved: Mapping[str, Any]) -> None:
        """Gives every optimizer the groups and the state that the snapshot has. `saved`: what optimizers.capture gave of each.

        The inventory that this object was made with must be one that was taken after `fit_modules`.
        """
        for name, optimizer in self._live.optimizers.items():
            self._fit_groups(optimizer, self._structure.groups[name], saved[name]["groups"])
        for name, optimizer in self._live.optimizers.items():
            restore_own_parts(optimizer, saved[name]["own"])
        for name, optimizer in self._live.optimizers.items():
            self._fit_state(name, optimizer, saved[name]["state"])

    def _fit_groups(self, optimizer: Optimizer, groups: tuple[tuple[str, ...], ...], values: Sequence[Any]) -> None:
        wanted = [[self._parameter(name) for name in group] for group in groups]
        changed = len(wanted) < len(optimizer.param_groups)
        del optimizer.param_groups[len(wanted) :]
        for group, parameters in zip(optimizer.param_groups, wanted, strict=False):
            if list(map(id, group["params"])) != list(map(id, parameters)):
                group["params"][:] = parameters
                changed = True
        if changed and hasattr(optimizer, "_clear_cache"):  # ZeRO's: which rank has which parameter
            optimizer._clear_cache()
        for index in range(len(optimizer.param_groups), len(wanted)):  # its own way: ZeRO spreads them over the ranks
            optimizer.add_param_group({**decode(values[index]), "params": wanted[index]})

    def _fit_state(self, name: str, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
        prefix = f"{STATE}{name}/"
        live = dict(state_tensors(name, optimizer, self._live.names))
        ties = {path: self._wanted[first] for path, first in self._structure.ties.items()}
        items: dict[str, dict[str, Item]] = {}
        for path, item in (self._wanted | ties).items():
            if path.startswith(prefix):
                owner, entry = path.removeprefix(prefix).split("/")
                items.setdefault(owner, {})[entry] = item
        keys = {owner: key for owner, key, _ in kept_for(optimizer, self._live.names) if owner in items or owner in saved}
        for unwanted in optimizer.state.keys() - keys.values():
            del optimizer.state[unwanted]
        for owner in dict.fromkeys([*items, *saved]):
            key: Any = keys.get(owner)
            if key is None:
                key = unquote(owner[1:]) if owner.startswith("=") else self._parameter(owner)

            def tensor(entry: str, owner: str = owner, key: Any = key) -> Tensor:
                path = f"{prefix}{owner}/{entry}"
                return self._state_tensor(path, items[owner][entry], key, live.get(path))

            entries = items.get(owner, {})
            optimizer.state[key] = _kept(optimizer.state.get(key), entries, saved.get(owner), tensor)

    def _state_tensor(self, path: str, item: Item, owner: Any, now: Tensor | None) -> Tensor:
        """Returns what is to lie at this path of an optimizer's state: what lies there now, if it fits."""
        first = self._structure.ties.get(path, path)
        if not first.startswith(STATE):
            return self._live.tensors[first]
        if first not in self._fitted:
            fits = now is not None and self._fits(now, item)
            self._fitted[first] = now if fits and now is not None else self._make(first, item, owner)
            self._used.add(id(self._fitted[first]))
        return self._fitted[first]

    def _parameter(self, name: str) -> Tensor:
        found = self._live.names.find(name)
        if found is None:
            raise SnapshotError(f"the snapshot is of another model: its optimizer has {name}")
        return found

    # ------------------------------------------------------------ gradients

    def fit_gradients(self) -> None:
        """Gives the parameters the gradients that the state has, new ones, and no others.

        The inventory that this object was made with must be one that was taken after `fit_modules`.
        """
        wanted = {path.removeprefix(GRADIENT): item for path, item in self._wanted.items() if path.startswith(GRADIENT)}
        for path, tensor in self._live.tensors.items():
            if path.startswith(PARAMETER):
                tensor.grad = None
        for name, item in wanted.items():
            parameter = self._parameter(name)
            parameter.grad = self._make(f"{GRADIENT}{name}", item, parameter)

    # ------------------------------------------------------------ tensors

    def _has_form(self, tensor: Tensor | None, item: Item) -> bool:
        local = local_part(tensor) if tensor is not None else None
        return local is not None and (tuple(local.shape), type_name(local.dtype)) == (item.shape, item.dtype)

    def _fits(self, tensor: Tensor, item: Item) -> bool:
        """Returns whether the item's bytes can be written where this tensor is."""
        local = local_part(tensor)
        stride = self._kind(path_of(item.key)).stride
        return (
            self._has_form(tensor, item)
            and path_of(item.key) + shard_of(tensor) == item.key
            and (local.is_contiguous() if stride is None else local.stride() == stride)
            and id(tensor) not in self._used
        )

    def _kind(self, path: str) -> Kind:
        return self._structure.kinds.get(path) or Kind()

    def _make(self, path: str, item: Item, owner: Any) -> Tensor:
        """Returns a new tensor, without values, for this item. `owner`: the parameter that it is kept for."""
        kind = self._kind(path)
        device = torch.device(kind.device) if kind.device else self._live.usual_device(path, len(item.shape))
        dtype = type_of(item.dtype)
        if kind.stride is None:
            made = torch.empty(item.shape, dtype=dtype, device=device)
        else:  # sums over another layout have another order
            made = torch.empty_strided(item.shape, kind.stride, dtype=dtype, device=device)
        if "@" not in item.key:
            return made
        if not isinstance(owner, DTensor):
            raise SnapshotError(f"the snapshot is of another model: it has {item.key}")
        shape = torch.Size(kind.shape) if kind.shape is not None else owner.shape
        return DTensor.from_local(
            made,
            owner.device_mesh,
            owner.placements if kind.placements is None else [_placement(text) for text in kind.placements],
            run_check=False,
            shape=shape,
            stride=owner.stride() if shape == owner.shape else torch.empty(shape, device="meta").stride(),
        )


def _kept(before: Any, items: Iterable[str], saved: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Returns what an optimizer is to keep for one parameter or under one text: the same dict as before where it is one."""
    if isinstance(saved, list):
        return decode(saved[0], before, item=tensor)
    kept = before if isinstance(before, dict) else {}
    deeper = item_paths(saved or {})
    entries = {entry: tensor(entry) for entry in items if entry not in deeper}
    rest = decode(saved or {}, dict(kept), item=tensor)
    kept.clear()
    kept.update({**entries, **rest})
    return kept


def _placement(text: str) -> Placement:
    """Returns the placement with this repr, as Shard(dim=0)."""
    name, _, arguments = text.rstrip(")").partition("(")
    values = [part.partition("=")[2] or part for part in arguments.split(", ") if part]
    placement: Placement = _PLACEMENTS[name](*(int(value) if value.lstrip("-").isdigit() else value for value in values))
    return placement


def _module_path(path: str) -> str:
    return path.partition("/")[2].rpartition(".")[0]


def _is_own(path: str) -> bool:
    """Returns whether the parameter is the optimizer's alone."""
    return path.rpartition(".")[2].startswith("#")


def _described(path: str, tensor: Tensor | None) -> str:
    return f"{path}, which is not there" if tensor is None else f"{path}{shard_of(tensor)} of {tuple(local_part(tensor).shape)}"
