"""What the training state consists of: every tensor under a name that means the same on every rank, and the metadata.

Tensors of two kinds. *Steady* ones change only inside optimizer.step (parameters, optimizer state): they are copied in the
background while the next step computes. *Volatile* ones may change at any moment (buffers such as running means): they are
cloned at the boundary.

An item's key is a name, and for a DTensor the place of the local shard in the whole: two ranks with the same key claim to hold
the same bytes. Whether that is true is checked by checksum (unique.py), never assumed.
"""

import random
import sys
from array import array
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from itertools import starmap
from operator import is_
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.proto.vault.layout import Item

Meta = dict[str, Any]


class Stateful(Protocol):
    """What can be registered as `extra`: a scheduler, a data loader, a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One tensor of the state as the process holds it: `tensor` is plain and local, shares memory with the user's."""

    key: str
    tensor: Tensor
    volatile: bool


class TrainingState:
    """The state of one rank: models, optimizers (and the optimizers inside them, as ZeroRedundancyOptimizer's), extras."""

    def __init__(
        self, *, models: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer], extra: Mapping[str, Stateful]
    ) -> None:
        self.models, self.extra = models, extra
        self.optimizers = {f"{name}{path}": inner for name, outer in optimizers.items() for path, inner in _nested(outer)}
        self._held: list[Held] = []
        self._held_of: list[Any] = [None]  # what _held was made of (see _tensors); nothing yet
        self._sharded: list[tuple[DTensor, Tensor]] = []  # with their local parts
        self._modelled: list[tuple[Tensor, Tensor]] = []  # local parts of parameters and buffers, and the tensors held of them
        self._stepped: list[Tensor] = []  # local parts of the optimizers' tensors; and where their bytes lay
        self._addresses: list[int] = []
        self._modules: list[nn.Module] = []
        self._names: dict[int, str] = {}
        for name, model in models.items():
            for path, weight in model.named_parameters():
                self._names.setdefault(id(weight), f"{name}.{path}")
        for name, optimizer in self.optimizers.items():
            for index, parameter in enumerate(_parameters(optimizer)):
                self._names.setdefault(id(parameter), f"{name}#{index}")

    def held(self) -> list[Held]:
        """Returns every tensor of the state, each once, in an order that depends on the construction only.

        The same list object as before when the process still holds the same tensors, in the same memory: `p.data = x` keeps the
        parameter and gives it other memory, and what was held before would be a copy that nobody updates any more.
        """
        now = self._tensors()
        if len(now) == len(self._held_of) and all(map(is_, now, self._held_of)) and self._lie_where_they_lay():
            return self._held
        self._modules = [module for model in self.models.values() for module in model.modules()]
        found: list[Held] = []
        seen: set[int] = set()
        self._sharded, self._modelled, self._stepped = [], [], []
        for key, tensor, volatile in self._walk():
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            local = tensor
            if isinstance(tensor, DTensor):
                local = tensor._local_tensor
                self._sharded.append((tensor, local))
            found.append(Held(key=key + _shard(tensor), tensor=local.detach(), volatile=volatile))
            if key.startswith("optimizer/"):
                self._stepped.append(local)
            else:
                self._modelled.append((local, found[-1].tensor))
        self._held, self._held_of = found, self._tensors()
        self._addresses = list(map(Tensor.data_ptr, self._stepped))
        return found

    def _lie_where_they_lay(self) -> bool:
        """Returns whether each tensor has the memory (and as a parameter or buffer the shape) that `held` has found."""
        return (
            all(tensor._local_tensor is local for tensor, local in self._sharded)
            and all(starmap(Tensor.is_set_to, self._modelled))
            and self._addresses == list(map(Tensor.data_ptr, self._stepped))
        )

    def _tensors(self) -> list[Any]:
        """Returns the user's tensors and whatever else tells that they are still the same ones in the same places."""
        found: list[Any] = []
        for model in self._modules:
            found += model._parameters.values()
            found += model._buffers.values()
            found += model._modules.values()
        for optimizer in self.optimizers.values():
            for entries in optimizer.state.values():
                found += entries.values()
        return found

    def _walk(self) -> Iterator[tuple[str, Tensor, bool]]:
        for name, model in self.models.items():
            for path, weight in model.named_parameters():
                yield f"model/{name}.{path}", weight, False
            for path, buffer in model.named_buffers():
                yield f"buffer/{name}.{path}", buffer, True
        for name, optimizer in self.optimizers.items():
            for parameter, entries in optimizer.state.items():
                for entry, value in entries.items():
                    if isinstance(value, Tensor):
                        yield f"optimizer/{name}/{self._names[id(parameter)]}/{entry}", value, False

    def zero_gradients(self) -> None:
        """Forgets the gradients of a discarded step."""
        for model in self.models.values():
            for parameter in model.parameters():
                parameter.grad = None

    def capture_meta(self) -> Meta:
        """Returns everything that is not a tensor of `held`: random generators, param groups, extras. A copy as of now."""
        optimizers = {
            name: {
                "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
                "state": {
                    self._names[id(parameter)]: plain
                    for parameter, entries in optimizer.state.items()
                    if (plain := {k: v for k, v in entries.items() if not isinstance(v, Tensor)})
                },
            }
            for name, optimizer in self.optimizers.items()
        }
        extra = {name: deepcopy(each.state_dict()) for name, each in self.extra.items()}
        return {"random": _random_states(), "optimizers": optimizers, "extra": extra}

    def restore_meta(self, meta: Meta) -> None:
        saved = deepcopy(meta)  # load_state_dict may keep what it is given, and the state may be needed again
        for name, optimizer in self.optimizers.items():
            for group, values in zip(optimizer.param_groups, saved["optimizers"][name]["groups"], strict=True):
                for key, value in values.items():
                    if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                        group[key].copy_(value)
                    else:
                        group[key] = value
            by_name = {self._names[id(parameter)]: parameter for parameter in _parameters(optimizer)}
            for path, values in saved["optimizers"][name]["state"].items():
                optimizer.state[by_name[path]].update(values)
        for name, each in self.extra.items():
            each.load_state_dict(saved["extra"][name])
        _restore_random_states(saved["random"])

    @torch.no_grad()
    def fit(self, items: Mapping[str, Item]) -> dict[str, Tensor]:
        """Makes the process hold exactly these items and returns where each one's bytes go.

        A joiner has rehearsed and holds optimizer state that S_0 does not have: it is dropped. Optimizer state that is missing is
        made. SnapshotError when a parameter or buffer differs in name, shape or type.
        """
        for name, optimizer in self.optimizers.items():
            for parameter, entries in list(optimizer.state.items()):
                for entry, value in list(entries.items()):
                    prefix = f"optimizer/{name}/{self._names[id(parameter)]}/{entry}"
                    if isinstance(value, Tensor) and prefix + _shard(value) not in items:
                        del entries[entry]
                if not entries:
                    del optimizer.state[parameter]
        mine = {held.key: held.tensor for held in self.held()}
        missing = items.keys() - mine.keys()
        for item in items.values():
            if item.key in missing:
                self._make(item)
        if missing:
            mine = {held.key: held.tensor for held in self.held()}
        if mine.keys() != items.keys():
            raise SnapshotError(f"the snapshot is of another model: only one side has {sorted(mine.keys() ^ items.keys())[:4]}")
        for key, tensor in mine.items():
            if (tuple(tensor.shape), type_name(tensor.dtype)) != (items[key].shape, items[key].dtype):
                raise SnapshotError(f"{key}: the snapshot has {items[key].dtype} {items[key].shape}, the model {tensor.shape}")
        return mine

    def _make(self, item: Item) -> None:
        kind, _, rest = item.key.partition("/")
        if kind != "optimizer":
            raise SnapshotError(f"the snapshot is of another model: it has {item.key}")
        name, path, entry = rest.partition("@")[0].split("/")
        optimizer = self.optimizers[name]
        parameter = next(p for p in _parameters(optimizer) if self._names[id(p)] == path)
        device = parameter.device if item.shape else torch.device("cpu")  # counters such as Adam's step live on the host
        value = torch.empty(item.shape, dtype=getattr(torch, item.dtype), device=device)
        if isinstance(parameter, DTensor) and "@" in item.key:
            value = DTensor.from_local(
                value,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        optimizer.state[parameter][entry] = value


def pack_meta(meta: Meta) -> bytes:
    buffer = BytesIO()
    torch.save({**meta, "random": _as_tensors(meta["random"])}, buffer)
    return buffer.getvalue()


def unpack_meta(data: bytes) -> Meta:
    """Returns what pack_meta was given. Runs no code from the data (weights_only)."""
    meta: Meta = torch.load(BytesIO(data), weights_only=True)
    return {**meta, "random": _from_tensors(meta["random"])}


def check_meta(meta: Meta) -> None:
    """ConfigError when the metadata could not be read back: it may hold tensors, numbers, text, lists, tuples and dicts."""
    try:
        unpack_meta(pack_meta(meta))
    except Exception as error:
        raise ConfigError(
            "protect(): the state_dict of an extra object holds something other than tensors, numbers, text, lists and dicts, "
            f"which cannot be restored safely: {str(error).splitlines()[0]}"
        ) from error


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _nested(optimizer: Optimizer) -> Iterator[tuple[str, Optimizer]]:
    """Yields the optimizer and those that it wraps, each with the path of attributes that leads to it."""
    yield "", optimizer
    for attribute, value in vars(optimizer).items():
        if isinstance(value, Optimizer):
            yield from ((f".{attribute}{path}", inner) for path, inner in _nested(value))


def _shard(tensor: Tensor) -> str:
    """Returns "" for a plain tensor, "@offset+shape" of the local part for a DTensor."""
    if not isinstance(tensor, DTensor):
        return ""
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return f"@{','.join(map(str, offset))}+{','.join(map(str, shape))}"


def _random_states() -> dict[str, Any]:
    """Returns the state of every random generator in use, as its library gives it."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _as_tensors(states: dict[str, Any]) -> dict[str, Any]:
    """Returns the states in types that can be read back without running code."""
    version, words, gauss = states["python"]
    plain = {**states, "python": [version, torch.frombuffer(array("q", words), dtype=torch.int64), gauss]}
    if "numpy" in states:
        name, keys, *rest = states["numpy"]
        plain["numpy"] = [name, torch.from_numpy(keys.astype("int64")), *rest]
    return plain


def _from_tensors(plain: dict[str, Any]) -> dict[str, Any]:
    version, words, gauss = plain["python"]
    states = {**plain, "python": (version, tuple(words.tolist()), gauss)}
    if "numpy" in plain:
        name, keys, *rest = plain["numpy"]
        states["numpy"] = (name, keys.numpy().astype("uint32"), *rest)
    return states
