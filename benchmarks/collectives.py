"""What does the wrapper of a collective cost? Calls on a group of ours and on the bare group inside it, in pairs.

    python benchmarks/collectives.py [--pairs 3000] > collectives.json

One process, a group of one: nothing travels, what is left is the call itself. In each pair either comes first as often as the
other. `wrapper_us` is the median of the pairs' differences. JSON to stdout.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from deadpool.proto.call_record import CallRecord
from deadpool.trainer_hooks.groups.inner import Membership, connect, listeners
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.torch_internals import TCPStore

WARM_UP_PAIRS = 200
NUMBERS = 1024
OPERATIONS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "allreduce": lambda group, output, given: group.allreduce([output]),
    "broadcast": lambda group, output, given: group.broadcast([output]),
    "_allgather_base": lambda group, output, given: group._allgather_base(output, given),
    "_reduce_scatter_base": lambda group, output, given: group._reduce_scatter_base(output, given),
}


def measure(call: Callable[[Any, torch.Tensor, torch.Tensor], Any], ours: Any, bare: Any, pairs: int) -> dict[str, float]:
    """Returns medians in microseconds of a call and the wait for it."""
    output, given = torch.zeros(NUMBERS), torch.ones(NUMBERS)
    spent_us: dict[int, list[float]] = {id(ours): [], id(bare): []}
    for turn in range(WARM_UP_PAIRS + pairs):
        for group in (ours, bare) if turn % 2 else (bare, ours):
            began_ns = time.perf_counter_ns()
            call(group, output, given).wait()
            spent_us[id(group)].append((time.perf_counter_ns() - began_ns) / 1000)
    wrapped, plain = (spent_us[id(group)][WARM_UP_PAIRS:] for group in (ours, bare))
    return {
        "deadpool_us": round(statistics.median(wrapped), 2),
        "bare_us": round(statistics.median(plain), 2),
        "wrapper_us": round(statistics.median(a - b for a, b in zip(wrapped, plain, strict=True)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        record = CallRecord(Path(folder) / "record", create=True)
        groups = Groups(record=record, host="127.0.0.1", on_broken=lambda generation, error: print(error, file=sys.stderr))
        groups.init_default(rank=0, world_size=1, generation=1, store=store)
        place = Membership(name="bare", rank=0, size=1, global_ranks=(), devices=("cpu",))
        (listener,) = listeners("127.0.0.1", 1)
        inner = connect(place, listener, [], store, timeout_s=60.0, deadline_s=time.monotonic() + 60.0)
        results = {name: measure(call, dist.group.WORLD, inner.group, arguments.pairs) for name, call in OPERATIONS.items()}
        groups.close()
        record.close()
    print(json.dumps({"machine": machine.describe(), "pairs": arguments.pairs, **results}, indent=2))


if __name__ == "__main__":
    main()
