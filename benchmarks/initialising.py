"""What would a joiner save that does not compute its parameters' first values? All of them are overwritten by the restore.

    python benchmarks/initialising.py

A transformer of about 200M parameters is built on one core: as it is; with copies of a small random tile in place of each large
parameter's values; and so that, besides, the random numbers are drawn that it would have drawn. Without those, whatever the
script draws afterwards is not what the rank's predecessor has drawn.
"""

import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, BLOCKS, REPEATS = 1024, 16, 5
TILE = 1 << 16
KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nn.Linear's own": lambda weight: None,
    "normal_ after it": lambda weight: nn.init.normal_(weight, std=0.02),
    "trunc_normal_ after it": lambda weight: nn.init.trunc_normal_(weight, std=0.02),
}


class Tiled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills large parameters with copies of a tile. `drawn`: what of the generator was left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[tuple[Any, torch.Size, tuple[Any, ...], Mapping[str, Any]]] = []
        self._generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = args[0] if args else None
        if torch.Tag.nondeterministic_seeded not in function.tags or type(target) is not nn.Parameter or target.numel() < TILE:
            return function(*args, **kwargs)
        self.drawn.append((function, target.shape, args[1:], kwargs))
        tile = torch.empty(TILE)
        function(tile, *args[1:], **{**kwargs, "generator": self._generator})
        flat = target.data.view(-1)
        flat.view(-1, TILE).copy_(tile)
        return target

    def catch_up(self) -> None:
        """Draws what was left out."""
        for function, shape, args, kwargs in self.drawn:
            function(torch.empty(shape), *args, **kwargs)


def build(initialise: Callable[[torch.Tensor], Any]) -> nn.Module:
    sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    layers = [nn.Linear(*each) for _ in range(BLOCKS) for each in sizes]
    for layer in layers:
        initialise(layer.weight)
    return nn.ModuleList(layers)


@contextmanager
def fresh_memory() -> Iterator[None]:
    """As in a process that has built nothing yet."""
    yield
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def seconds(initialise: Callable[[torch.Tensor], Any], *, tiled: bool, catch_up: bool) -> float:
    with fresh_memory():
        began_s = time.perf_counter()
        with Tiled() if tiled else nullcontext() as mode:
            model = build(initialise)
        if catch_up and mode is not None:
            mode.catch_up()
        took_s = time.perf_counter() - began_s
        del model
    return took_s


def main() -> None:
    torch.set_num_threads(1)
    ways = {"as it is": (False, False), "tiled": (True, False), "tiled, and drawn": (True, True)}
    build(KINDS["nn.Linear's own"])
    report = {
        kind: {
            way: round(statistics.median(seconds(initialise, tiled=tiled, catch_up=drawn) for _ in range(REPEATS)), 2)
            for way, (tiled, drawn) in ways.items()
        }
        for kind, initialise in KINDS.items()
    }
    params = sum(each.numel() for each in build(KINDS["nn.Linear's own"]).parameters())
    print(json.dumps({"parameters": params, "seconds": report}, indent=2))


if __name__ == "__main__":
    main()
