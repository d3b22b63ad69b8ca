"""What the process holds at this moment: every tensor of the state under its key, and the structure around them.

Taking it walks through all modules and optimizers; `is_still_true` tells in about a tenth of a microsecond for each tensor
whether that is needed again. Memory counts, not only identity: `p.data = x` keeps the parameter and gives it other memory, and
what was held before would be bytes that nobody updates any more.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, starmap
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from deadpool.trainer_hooks.state import modules, optimizers
from deadpool.trainer_hooks.state.items import Held, local_part, path_of, shard_of
from deadpool.trainer_hooks.state.modules import BUFFER, GRADIENT, PARAMETER, Place, Shards
from deadpool.trainer_hooks.state.optimizers import STATE, ParameterNames, parameters_of
from deadpool.trainer_hooks.state.structure import Kind, Structure

_requires_grad = attrgetter("requires_grad")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A tensor as it was found."""

    tensor: Tensor
    local: Tensor
    held: Held

    def is_as_found(self, path: str) -> bool:
        return self.local.is_set_to(self.held.tensor) and path_of(self.held.key) == path

    def is_like(self, other: "_Seen") -> bool:
        """Returns whether both are made alike, and known alike."""
        mine, its = self.local, other.local
        return (
            self.held.key == other.held.key
            and type(self.tensor) is type(other.tensor)
            and (mine.shape, mine.dtype, mine.device, mine.stride()) == (its.shape, its.dtype, its.device, its.stride())
            and getattr(self.tensor, "placements", None) == getattr(other.tensor, "placements", None)
        )


class First:
    """What there was when the state was registered: a new process has it too, for it runs the same script up to there.

    `forms`: shape and type of each parameter and buffer, by path.
    """

    def __init__(self, found: "Inventory") -> None:
        self.modules = frozenset(found.modules)
        self.forms = {path: _form(tensor) for path, tensor in found.tensors.items() if not path.startswith(STATE)}

    def has_other_form(self, path: str, tensor: Tensor) -> bool:
        """Returns whether the tensor has come there, or become another one, since."""
        return self.forms.get(path) != _form(tensor)


class Inventory:
    """`tensors`: the user's, by path, each once; `ties`: path -> the path under which the same tensor is among them.
    `unfit`: "path: what it is" of tensors that cannot be held. `waiting`: names of parameters whose gradients are of the state.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers_by_name: Mapping[str, Optimizer],
        before: "Inventory | None" = None,
        *,
        waiting: tuple[str, ...] = (),
    ) -> None:
        self.modules = modules.modules_of(models)
        self.shards: Shards = modules.shards_of(self.modules.values())
        self.wrappers = modules.Wrappers(self.modules.values())
        self.optimizers = optimizers_by_name
        self.places: dict[str, Place] = {}
        self.names = ParameterNames()
        self.tensors: dict[str, Tensor] = {}
        self.ties: dict[str, str] = {}
        self.empty: list[str] = []
        self.unfit: list[str] = []
        self.held: list[Held] = []
        self._seen: dict[int, _Seen] = {}
        self._firsts: dict[str, Tensor] = {}  # of each model
        self._parameters: list[Tensor] = []  # of the modules
        self._whole: list[Place] = []  # of those that FSDP2 has not sharded
        self.waiting = waiting
        self.plain: dict[int, Any] = {}  # what optimizers keep for parameters that is tensors and nothing else, by its id
        self._walk(before._seen if before is not None else {})
        self._remember_memory()
        self._looked, self._counts = self._look()
        self._arranged = self._arrangement()
        if before is not None and self._same_tensors(before):
            self.held = before.held

    def is_still_true(self) -> bool:
        """Returns whether the process still holds the same tensors in the same memory, and the structure is the same."""
        now, counts = self._look()
        if counts != self._counts or len(now) != len(self._looked) or not all(map(is_, now, self._looked)):
            return False
        return (
            self._trained == list(map(_requires_grad, self._parameters))
            and all(tensor._local_tensor is local for tensor, local in self._sharded)
            and all(starmap(Tensor.is_set_to, self._modelled))
            and self._addresses == list(map(Tensor.data_ptr, self._locals))
        )

    def structure(self, first: First) -> Structure:
        modelled = {path: tensor for path, tensor in sorted(self.tensors.items()) if not path.startswith(STATE)}
        return Structure(
            modules=tuple(self.modules),
            frozen=tuple(path for path, tensor in modelled.items() if path.startswith(PARAMETER) and not tensor.requires_grad),
            empty=tuple(sorted(self.empty)),
            transient=tuple(sorted(path for path, place in self.places.items() if place.is_buffer and place.is_transient)),
            ties=self.ties,
            groups={
                name: tuple(tuple(self.names.of(parameter) for parameter in group["params"]) for group in optimizer.param_groups)
                for name, optimizer in self.optimizers.items()
            },
            reshaped=tuple(
                path for path, tensor in modelled.items() if not path.startswith(GRADIENT) and first.has_other_form(path, tensor)
            ),
            kinds=dict(self._kinds()),
        )

    @cached_property
    def stateful_modules(self) -> list[tuple[str, nn.Module]]:
        """Returns the modules that have state of a kind of their own."""
        plain = nn.Module.get_extra_state
        return [(path, module) for path, module in self.modules.items() if type(module).get_extra_state is not plain]

    def usual_device(self, path: str, dims: int) -> torch.device:
        """Returns where a tensor of that path is expected to be: beside its parameter, beside the others of its model."""
        if path.startswith(STATE):
            owner = self.names.find(path.split("/")[2])
            return owner.device if owner is not None and dims else torch.device("cpu")  # a count of steps lives on the host
        first = self._firsts.get(_root_of(path))
        return first.device if first is not None else torch.device("cpu")

    # ------------------------------------------------------------ taking it

    def _look(self) -> tuple[list[Any], list[int]]:
        """Returns the user's tensors and whatever else tells that the state consists of the same things, and of how many."""
        found, counts = modules.shown(self.modules.values(), self.shards, self._whole)
        for optimizer in self.optimizers.values():
            found.append(vars(optimizer).get("step"))  # a scheduler puts its own there
            for group in optimizer.param_groups:
                found.append(None)  # where one group ends
                found += group["params"]
            found += self._tensors_kept(optimizer)
        found += [gradient for _, gradient in self._gradients()]
        return found, counts

    def _tensors_kept(self, optimizer: Optimizer) -> Iterable[Any]:
        kept = list(optimizer.state.values())
        if all(map(self.plain.__contains__, map(id, kept))):
            return chain.from_iterable(map(dict.values, kept))
        tensors = (each.values() if id(each) in self.plain else optimizers.tensors_in(each) for each in kept)
        return chain.from_iterable(tensors)

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name in self.waiting:
            parameter = self.names.find(name)
            if parameter is not None and parameter.grad is not None:
                yield name, parameter.grad

    def _walk(self, known: Mapping[int, _Seen]) -> None:
        for place, tensor in modules.places(self.modules, self.shards):
            self.places[place.path] = place
            if not (place.is_buffer or (id(place.module), place.name) in self.shards):
                self._whole.append(place)
            if tensor is None:
                self.empty.append(place.path)
            else:
                self._add(place.path, tensor, known)
                if not place.is_buffer:
                    self._parameters.append(tensor)
                    self.names.add(place.path.removeprefix(PARAMETER), tensor)
        for name, optimizer in self.optimizers.items():
            for index, parameter in enumerate(parameters_of(optimizer)):
                if parameter not in self.names:  # masters of what a model has in another type
                    self.names.add(f"{name}.#{index}", parameter)
                    self._add(f"{PARAMETER}{name}.#{index}", parameter, known)
        self._mark_averages()
        for name, optimizer in self.optimizers.items():
            for path, tensor in optimizers.state_tensors(name, optimizer, self.names):
                self._add(path, tensor, known)
            self.plain |= optimizers.plain_states(optimizer)
        for name, gradient in self._gradients():
            self._add(f"{GRADIENT}{name}", gradient, known)
        self.held = [self._seen[id(tensor)].held for tensor in self.tensors.values()]

    def _add(self, path: str, tensor: Tensor, known: Mapping[int, _Seen]) -> None:
        if (first := self._seen.get(id(tensor))) is not None:
            self.ties[path] = path_of(first.held.key)
            return
        local = local_part(tensor)
        seen = known.get(id(tensor))
        if seen is None or seen.tensor is not tensor or seen.local is not local or not seen.is_as_found(path):
            if problem := _unfit(local):
                self.unfit.append(f"{path}: {problem}")
                return
            held = Held(key=path + shard_of(tensor), tensor=local.detach(), volatile=path.startswith((BUFFER, GRADIENT)))
            seen = _Seen(tensor=tensor, local=local, held=held)
        self._seen[id(tensor)] = seen
        self.tensors[path] = tensor
        if path.startswith(PARAMETER):
            self._firsts.setdefault(_root_of(path), tensor)

    def _mark_averages(self) -> None:
        """Parameters that no optimizer updates may change at any moment: averages of the weights, momentum encoders.

        They are volatile unless there are more of them than of the others: then they are frozen ones, and cloning them is dear.
        """
        stepped = {id(parameter) for optimizer in self.optimizers.values() for parameter in parameters_of(optimizer)}
        found = [seen for seen in self._seen.values() if seen.held.key.startswith(PARAMETER)]
        others_bytes = sum(seen.local.nbytes for seen in found if id(seen.tensor) not in stepped)
        few = 2 * others_bytes <= sum(seen.local.nbytes for seen in found)
        for seen in found:
            volatile = few and id(seen.tensor) not in stepped
            if seen.held.volatile is not volatile:
                self._seen[id(seen.tensor)] = replace(seen, held=replace(seen.held, volatile=volatile))

    def _remember_memory(self) -> None:
        """Notes what `is_still_true` compares besides: a storage may get other memory (share_memory_, resize_) in place."""
        self._trained = list(map(_requires_grad, self._parameters))
        found = list(self._seen.values())
        self._sharded = [(seen.tensor, seen.local) for seen in found if isinstance(seen.tensor, DTensor)]
        self._modelled = [(seen.local, seen.held.tensor) for seen in found if not seen.held.key.startswith(STATE)]
        self._locals = [seen.local for seen in found]
        self._addresses = list(map(Tensor.data_ptr, self._locals))

    def has_structure_of(self, before: "Inventory") -> bool:
        """Returns whether, if anything, only tensors have been replaced, by others of the same form in the same places."""
        return (
            self._arrangement() == before._arranged
            and list(self.tensors) == list(before.tensors)
            and (self.modules, self.ties, self.empty, self.unfit) == (before.modules, before.ties, before.empty, before.unfit)
            and all(
                now is then or now.is_like(then) for now, then in zip(self._seen.values(), before._seen.values(), strict=True)
            )
        )

    def _arrangement(self) -> list[Any]:
        """Returns which parameters are in which group, which are trained, and what wraps the optimizers."""
        groups = [list(map(id, group["params"])) for each in self.optimizers.values() for group in each.param_groups]
        trained = [tensor.requires_grad for path, tensor in self.tensors.items() if path.startswith(PARAMETER)]
        return [groups, trained, [id(vars(each).get("step")) for each in self.optimizers.values()]]

    def _same_tensors(self, before: "Inventory") -> bool:
        """Returns whether the same are held, in the same memory."""
        same = len(self.held) == len(before.held) and all(map(is_, self.held, before.held))
        return same and self._addresses == before._addresses

    def _kinds(self) -> Iterator[tuple[str, Kind]]:
        """Yields what is to be known of a tensor that a new process has to make, where it is not as expected."""
        for path, tensor in self.tensors.items():
            local = self._seen[id(tensor)].local
            device = "" if tensor.device == self.usual_device(path, local.dim()) else tensor.device.type
            stride = None if local.is_contiguous() or _overlaps(local) else local.stride()
            shape = placements = None
            if isinstance(tensor, DTensor) and path.startswith((STATE, GRADIENT)):
                owner = self.names.find(path.removeprefix(GRADIENT) if path.startswith(GRADIENT) else path.split("/")[2])
                if not isinstance(owner, DTensor) or (owner.shape, owner.placements) != (tensor.shape, tensor.placements):
                    shape, placements = tuple(tensor.shape), tuple(map(repr, tensor.placements))
            kind = Kind(device=device, stride=stride, shape=shape, placements=placements)
            if kind != Kind():
                yield path, kind


def _unfit(tensor: Tensor) -> str:
    """Returns why a snapshot cannot hold this tensor, "" when it can."""
    if is_lazy(tensor):
        return "has no shape before the first forward; run one before protect()"
    if tensor.is_meta:
        return "is on the meta device"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"is {str(tensor.layout).removeprefix('torch.')}{', quantized' if tensor.is_quantized else ''}, not dense"
    if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        return f"is a {type(tensor).__name__}, which has its bytes in other tensors"
    return ""


def _overlaps(tensor: Tensor) -> bool:
    """Returns whether elements share memory otherwise than by being repeated along a whole dimension (items.put)."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and 0 < stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _form(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _root_of(path: str) -> str:
    return path.partition("/")[2].partition(".")[0]
