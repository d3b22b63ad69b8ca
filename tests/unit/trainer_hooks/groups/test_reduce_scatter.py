"""What reduce_scatter gives on Gloo is what Gloo's own gives, bit for bit; what it cannot make itself is left to Gloo."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore

from deadpool.trainer_hooks.groups import reduce_scatter

SIZE = 3
SUM, AVG, MIN, MAX, PRODUCT, BAND = (
    dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.BAND
)  # fmt: skip


class World:
    """Ranks in threads of this process, each with a bare Gloo group."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads, store = threads, HashStore()
        self._groups: list[Any] = []
        self._groups = self.each(
            lambda rank: dist.ProcessGroupGloo(PrefixStore("world", store), rank, SIZE, timedelta(seconds=30))
        )

    def each(self, call: Callable[[int], Any]) -> list[Any]:
        return list(self._threads.map(call, range(SIZE)))

    def reduced(self, given: Callable[[int], Tensor], options: dist.ReduceScatterOptions, *, by_gloo: bool) -> list[Any]:
        """Returns each rank's output, or what the call has said."""

        def call(rank: int) -> Any:
            group, whole = self._groups[rank], given(rank)
            output, before = torch.zeros(whole.shape[0] // SIZE, *whole.shape[1:], dtype=whole.dtype), whole.clone()
            try:
                if by_gloo:
                    group._reduce_scatter_base(output, whole, options).wait()
                else:
                    begun = reduce_scatter.begin(group, (output, whole, options), rank, SIZE)
                    assert begun is not None
                    begun[0].wait()
                    begun[1]()
            except RuntimeError as error:
                return str(error)
            assert torch.equal(whole, before)
            return output

        return self.each(call)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ThreadPoolExecutor(SIZE) as threads:
        yield World(threads)


@pytest.mark.parametrize("operation", [SUM, AVG, MIN, MAX, PRODUCT, BAND], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8], ids=str
)
def test_results_and_errors_are_those_of_gloo(world: World, operation: Any, dtype: torch.dtype) -> None:
    options = dist.ReduceScatterOptions()
    options.reduceOp = operation
    for shape in [(SIZE,), (SIZE * 1000,), (SIZE * 5, 7)]:
        generators = [torch.Generator().manual_seed(rank) for rank in range(SIZE)]
        given = [(7 * torch.rand(shape, generator=generator)).to(dtype) for generator in generators]
        theirs, ours = (world.reduced(given.__getitem__, options, by_gloo=by_gloo) for by_gloo in (True, False))
        for their, our in zip(theirs, ours, strict=True):
            assert type(their) is type(our)
            assert their == our if isinstance(their, str) else torch.equal(their.view(torch.uint8), our.view(torch.uint8))


@pytest.mark.parametrize(
    "args",
    [
        (torch.zeros(2), torch.zeros(5)),
        (torch.zeros(2, 3), torch.zeros(18)),
        (torch.zeros(2), torch.zeros(6, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(6), SUM),
        (torch.zeros(2), torch.zeros(6), dist.ReduceScatterOptions(), None),
        (torch.zeros(2, device="meta"), torch.zeros(6, device="meta")),
        (torch.zeros(()), torch.zeros(SIZE)),
        ([torch.zeros(2)], [[torch.zeros(2)] * SIZE]),
    ],
)
def test_anything_else_is_left_to_gloo(args: tuple[Any, ...]) -> None:
    assert reduce_scatter.begin(None, args, 0, SIZE) is None
