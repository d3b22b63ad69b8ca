"""What `join(skip_init=True)` leaves out in a process that takes over a rank: random first values of large parameters.

The restore overwrites every parameter, so a joiner need not compute what a parameter begins with. Two things must stay.
*The random numbers that follow*: the generator is moved to where the fill would have left it (generator_jump.py). *What is made
from first values and is not overwritten*, as a copy of the model that the script keeps for itself: from join() until the first
loop begins, each tensor that an operator makes from such values is followed, in every process, a rank of the start as well. One
that lives on and is not in protect() refuses the job, when it starts; so does a number that is read from them. Not seen: what
numpy or another thread reads of them. Where torch itself draws until the values please it (trunc_normal_), nothing is left out.
"""

import gc
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from deadpool.trainer_hooks.generator_jump import advance
from deadpool.trainer_hooks.state.items import local_part
from deadpool.trainer_hooks.torch_internals import TorchDispatchMode, innermost_dispatch_mode, tree_leaves

LET_GO_S = 5.0
LARGE = 1 << 20  # elements; to draw fewer takes no longer than to move the generator
_TILE = 1 << 16
_POLL_S = 0.01
_FILLS = (torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default)
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class FirstValues(TorchDispatchMode):
    """What it sees between `begin` and `end`, on the thread that calls both."""

    def __init__(self, large: int = LARGE) -> None:
        """`large`: a parameter that has so many elements."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._large = large
        self.on = self._left_out = self._number_read = False
        self._made: dict[int, tuple[StorageWeakRef, str]] = {}  # from first values: by its storage, and what it is
        self._tiles = torch.Generator().manual_seed(0)

    def begin(self, *, left_out: bool) -> None:
        """`left_out`: large parameters get copies of a small tile; else they are only followed."""
        self.on, self._left_out = True, left_out
        self._truncated = nn.init._no_grad_trunc_normal_
        nn.init._no_grad_trunc_normal_ = self._whole
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        if not self.on:
            return
        nn.init._no_grad_trunc_normal_ = self._truncated
        if innermost_dispatch_mode() is self:  # else it passes everything on
            self.__exit__(None, None, None)
        self.on = self._number_read = False
        self._made.clear()

    def kept_elsewhere(self, protected: Iterable[Tensor], *, let_go_s: float = LET_GO_S) -> str:
        """Returns what is wrong: what was made from first values and is none of these tensors; "" where nothing is.

        Gloo's threads, too, hold the tensors of a call until they get time after its end: so long it waits before it says so.
        """
        safe = {_key(each) for each in protected}
        deadline_s = time.monotonic() + let_go_s
        if not set(self._alive()) <= safe:
            gc.collect()
        while not set(self._alive()) <= safe and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        wrong = "a number was read from them" if self._number_read else ""
        for key, what in self._alive().items():
            if key not in safe:
                wrong = f"{what} was made from them and is not in protect()"
        hint = "a process that takes over a rank does not compute them; leave skip_init out"
        return f"join(skip_init=True): random first values of parameters are used elsewhere: {wrong}; {hint}" if wrong else ""

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.on:
            return function(*args, **kwargs)
        if function in _FILLS and args[0].numel() >= self._large and _is_fit(args[0]):
            numbers = _numbers(function, args[0].dtype, args[0].numel() % 16, args[1:])
            if numbers is not None:
                self._follow(args[0])
                return self._fill(function, args[0], args[1:], kwargs, numbers) if self._left_out else function(*args, **kwargs)
        made = function(*args, **kwargs)
        if self._made and _looks_at_values(function) and any(_key(each) in self._made for each in _tensors((args, kwargs))):
            self._number_read |= not _READS.isdisjoint(function.tags)
            for each in _tensors((made, _written(function, args))):
                self._follow(each)
        return made

    def _whole(self, *args: Any, **kwargs: Any) -> Any:
        self.on = False
        try:
            return self._truncated(*args, **kwargs)
        finally:
            self.on = True

    def _fill(self, function: Any, target: Tensor, bounds: tuple[Any, ...], kwargs: Any, numbers: tuple[int, int]) -> Tensor:
        """Fills with copies of a tile: a rehearsal runs on values of the kind that it expects."""
        tile = torch.empty(_TILE, dtype=target.dtype)
        function(tile, *bounds, generator=self._tiles)
        flat = target.data.view(-1)
        whole = flat.numel() // _TILE * _TILE
        flat[:whole].view(-1, _TILE).copy_(tile)
        flat[whole:].copy_(tile[: flat.numel() - whole])
        per_element, more = numbers
        advance(kwargs.get("generator") or torch.default_generator, per_element * target.numel() + more)
        return target

    def _follow(self, tensor: Tensor) -> None:
        if (key := _key(tensor)) not in self._made:
            storage = StorageWeakRef(local_part(tensor).untyped_storage())  # type: ignore[no-untyped-call]
            self._made[key] = storage, f"a tensor of shape {tuple(tensor.shape)}"

    def _alive(self) -> dict[int, str]:
        return {key: what for key, (storage, what) in self._made.items() if not storage.expired()}  # type: ignore[no-untyped-call]


def _is_fit(target: Tensor) -> bool:
    return type(target) is nn.Parameter and target.is_cpu and target.is_contiguous()


def _looks_at_values(function: Any) -> bool:
    name = function.overloadpacket.__name__
    return not name.endswith("_like") and not name.startswith("new_")


def _written(function: Any, args: tuple[Any, ...]) -> list[Any]:
    specs = function._schema.arguments
    return [each for each, spec in zip(args, specs, strict=False) if spec.alias_info is not None and spec.alias_info.is_write]


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def _key(tensor: Tensor) -> int:
    return int(local_part(tensor).untyped_storage()._cdata)


@cache
def _numbers(function: Any, dtype: torch.dtype, over: int, bounds: tuple[Any, ...]) -> tuple[int, int] | None:
    """Returns how many numbers a fill of n elements draws (n % 16 is `over`), as (each element's, so many more).

    Found out by drawing; None where it is none of the ways that are known.
    """
    for per_element, more in ((1, 0), (1, 16), (2, 0), (2, 32)):
        if all(_draws(function, dtype, size, bounds, per_element * size + more) for size in (1024 + over, 4096 + over)):
            return per_element, more
    return None


def _draws(function: Any, dtype: torch.dtype, size: int, bounds: tuple[Any, ...], numbers: int) -> bool:
    one, other = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    function(torch.empty(size, dtype=dtype), *bounds, generator=one)
    torch.empty(numbers).uniform_(generator=other)
    return one.get_state().equal(other.get_state())
