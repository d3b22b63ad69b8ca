"""What does a joiner save that leaves out its parameters' first values? All of them are overwritten by the restore.

    python benchmarks/initialising.py

A transformer of about 200M parameters is built on one core as it is, and as a joiner builds it with join(skip_init=True).
The random generator must come out the same.
"""

import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from deadpool.trainer_hooks.first_values import FirstValues

WIDTH, BLOCKS, REPEATS = 1024, 16, 5
KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nn.Linear's own": lambda weight: None,
    "normal_ after it": lambda weight: nn.init.normal_(weight, std=0.02),
    "trunc_normal_ after it": lambda weight: nn.init.trunc_normal_(weight, std=0.02),
}


def build(initialise: Callable[[torch.Tensor], Any], width: int, blocks: int) -> nn.Module:
    sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    layers = [nn.Linear(*each) for _ in range(blocks) for each in sizes]
    for layer in layers:
        initialise(layer.weight)
    return nn.ModuleList(layers)


@contextmanager
def fresh_memory() -> Iterator[None]:
    """As in a process that has built nothing yet."""
    yield
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def seconds(initialise: Callable[[torch.Tensor], Any], *, left_out: bool, width: int, blocks: int) -> tuple[float, torch.Tensor]:
    """Returns how long it takes, and the state of the generator after it."""
    torch.manual_seed(0)
    with fresh_memory():
        began_s = time.perf_counter()
        values = FirstValues()
        if left_out:
            values.begin(left_out=True)
        model = build(initialise, width, blocks)
        values.end()
        took_s = time.perf_counter() - began_s
        del model
    return took_s, torch.get_rng_state()


def compared(initialise: Callable[[torch.Tensor], Any], *, width: int = WIDTH, blocks: int = BLOCKS) -> dict[str, float]:
    runs = {
        way: [seconds(initialise, left_out=left_out, width=width, blocks=blocks) for _ in range(REPEATS)]
        for way, left_out in (("as it is", False), ("left out", True))
    }
    states = [state for each in runs.values() for _, state in each]
    assert all(state.equal(states[0]) for state in states), "the random numbers that follow differ"
    return {way: round(statistics.median(took_s for took_s, _ in each), 2) for way, each in runs.items()}


def main() -> None:
    torch.set_num_threads(1)
    build(KINDS["nn.Linear's own"], WIDTH, BLOCKS)
    report = {kind: compared(initialise) for kind, initialise in KINDS.items()}
    report["normal_ after it, blocks four times as wide, one of them"] = compared(
        KINDS["normal_ after it"], width=4 * WIDTH, blocks=1
    )
    params = sum(each.numel() for each in build(KINDS["nn.Linear's own"], WIDTH, BLOCKS).parameters())
    print(json.dumps({"parameters": params, "seconds": report}, indent=2))


if __name__ == "__main__":
    main()
