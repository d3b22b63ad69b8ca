"""Calls of a group some of whose members are excluded: made among those that are present, or not at all.

A call goes to the inner group, which has only the members present. What it gives there is made to mean what the script takes it
for (docs/guarantees.md): its group has as many members as ever.

    all_reduce, reduce    of floating-point numbers by SUM: scaled by members / members present, so that what DDP, or a script,
                          divides by the number of members is the mean over those present. All else: over those present
    broadcast, reduce     if the root is present        send, recv    if the peer is        barrier    of those present
    all others            have no result: NeedsAllError, and the ranks that are missing are wanted after all
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from deadpool.trainer_hooks.groups.muted import tensors_in

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_REDUCE = ("allreduce", "allreduce_coalesced", "reduce")
_ROOTED = ("broadcast", "reduce")
_TO_PEER = ("send", "recv")
_FOR_ALL = ("barrier",)
_SUMS = (dist.ReduceOp.SUM, dist.ReduceOp.PREMUL_SUM)


class NeedsAllError(Exception):
    """The call has no result without `ranks`."""

    def __init__(self, operation: str, ranks: tuple[int, ...]) -> None:
        super().__init__(f"{operation} needs rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}")
        self.ranks = ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The members of a group that are present. `ranks`: of all members, by their places. `places`: of those present, in order.

    `own`: the place of this process.
    """

    ranks: tuple[int, ...]
    places: tuple[int, ...]
    own: int

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(rank for place, rank in enumerate(self.ranks) if place not in self.places)

    @property
    def scale(self) -> float:
        return len(self.ranks) / len(self.places)

    def fit(self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Returns the arguments with which the inner group is called. NeedsAllError when it cannot give what is asked for."""
        if operation not in (*_REDUCE, *_ROOTED, *_TO_PEER, *_FOR_ALL):
            raise NeedsAllError(operation, self.missing)
        place = self.own
        if operation in _TO_PEER:
            place = int(args[1])
            args = (args[0], self._inner_place(operation, place), *args[2:])
        elif operation in _ROOTED:
            place, args, kwargs = self._with_root(operation, args, kwargs)
        if operation in _REDUCE and self.scale != 1 and _is_sum(args, kwargs):
            args = (self._scaled(args[0], in_place=place == self.own), *args[1:])
        return args, kwargs

    def _inner_place(self, operation: str, place: int) -> int:
        if place not in self.places:
            raise NeedsAllError(operation, (self.ranks[place],))
        return self.places.index(place)

    def _with_root(
        self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
        """Returns (the root's place, the arguments with its place in the inner group)."""
        for index, argument in enumerate(args[1:], 1):
            if (root := _root(argument)) is not None:
                return root, (*args[:index], self._rooted(operation, argument, root), *args[index + 1 :]), kwargs
        for name, argument in kwargs.items():
            if (root := _root(argument)) is not None:
                return root, args, {**kwargs, name: self._rooted(operation, argument, root)}
        options = dist.BroadcastOptions() if operation == "broadcast" else dist.ReduceOptions()  # torch's default: place 0
        return 0, args, {**kwargs, "opts": self._rooted(operation, options, 0)}

    def _rooted(self, operation: str, argument: Any, root: int) -> Any:
        place = self._inner_place(operation, root)
        if isinstance(argument, int):
            return place
        copied = type(argument)()
        for name in ("rootTensor", "reduceOp", "timeout", "asyncOp"):
            if hasattr(argument, name):
                setattr(copied, name, getattr(argument, name))
        copied.rootRank = place
        return copied

    def _scaled(self, tensors: Any, *, in_place: bool) -> Any:
        """Returns the tensors, scaled before they are summed. A root that is another keeps them as they are: a copy is sent."""
        if not in_place:
            tensors = tensors.clone() if isinstance(tensors, torch.Tensor) else [each.clone() for each in tensors]
        for each in tensors_in(tensors):
            if each.is_floating_point() or each.is_complex():
                each.data.mul_(self.scale)  # `.data`: a collective neither asks for gradients nor counts as a new version
        return tensors


def among(ranks: Sequence[int], own: int, excluded: frozenset[int]) -> Present | None:
    """Returns who of the group's members is present, None when all are. `own`: the place of this process."""
    places = tuple(place for place, rank in enumerate(ranks) if rank not in excluded)
    return None if len(places) == len(ranks) else Present(ranks=tuple(ranks), places=places, own=own)


def _root(argument: Any) -> int | None:
    root = getattr(argument, "rootRank", argument)
    return root if isinstance(root, int) else None


def _is_sum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether the call sums: torch's default, and what its options or its operation say."""
    for argument in (*args[1:], *kwargs.values()):
        reduced_by = getattr(argument, "reduceOp", argument)
        if isinstance(reduced_by, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return any(reduced_by == kind for kind in _SUMS)  # not `in`: the other way round no kind is equal to a ReduceOp
    return True
