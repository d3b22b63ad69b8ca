"""What does a recovery save that keeps open the groups of which no member is lost?

    python -m benchmarks.kept_groups > kept_groups.json

Four ranks on this machine, two "nodes" of two, break their generation and form it again, many times over. Each pair has K groups
of its own, as tensor-parallel and pipeline groups within a node are. These stay open ("kept"), or are made unfit for it before
each break and opened again ("opened"), in turns and in the same processes. The default group is opened each time, and one across
the nodes stays open. Progress goes to stderr, JSON to stdout.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.stats import summarize
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.torch_internals import TCPStore

RANKS, REFORM_TIMEOUT_S = 4, 60.0
WAYS = ("kept", "opened")


def rank_main(rank: int, port: int, count: int, cycles: int, results: Connection) -> None:
    """Sends the seconds of each reform and how many of its pair's groups stayed open: pairs, `WAYS` in turns."""
    torch.set_num_threads(1)
    groups = Groups(record=None, host="127.0.0.1", on_broken=lambda _generation, _error: None)
    groups.init_default(rank=rank, world_size=RANKS, generation=1, store=TCPStore("127.0.0.1", port, is_master=False))
    across = dist.new_group([0, 2])
    own: list[Any] = [[dist.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2] for _ in range(count)]
    found = []
    for generation in range(2, len(WAYS) * cycles + 2):
        dist.barrier()
        before = [group._opened[0] for group in own]
        if WAYS[generation % len(WAYS)] == "opened":
            for inner in before:
                inner.ledger.failed = True  # as if a call of it had failed
        groups.break_generation(generation, "the benchmark")
        groups.have_ended()
        groups.let_go()
        store = TCPStore("127.0.0.1", port, is_master=False)
        began_s = time.perf_counter()
        groups.reform(generation=generation, store=store, timeout_s=REFORM_TIMEOUT_S, cancelled=threading.Event())
        took_s = time.perf_counter() - began_s
        found.append((took_s, sum(group._opened[0] is inner for group, inner in zip(own, before, strict=True))))
        for group in (None, *own, *([across] if rank in (0, 2) else [])):
            value = torch.ones(1)
            dist.all_reduce(value, group=group)
            assert value == dist.get_world_size(group)
    results.send(found)
    results.close()
    groups.close()
    os._exit(0)  # as a rank does that has ended: no thread of torch is in the way


def reforms(count: int, cycles: int) -> dict[str, list[float]]:
    """Returns the seconds of each reform, of the rank that took longest, by how it went."""
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe() for _ in range(RANKS)]
    ranks = [
        context.Process(target=rank_main, args=(rank, store.port, count, cycles, results), daemon=True)
        for rank, (_, results) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    times = [here.recv() for here, _ in pipes]
    for process in ranks:
        process.join()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for cycle, each in enumerate(zip(*times, strict=True)):
        way = WAYS[cycle % len(WAYS)]
        assert {kept for _, kept in each} == {count if way == "kept" else 0}, f"{way}: {each}"
        found[way].append(max(took_s for took_s, _ in each))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=7)
    parser.add_argument("--groups", type=int, nargs="+", default=[0, 4, 16, 64])
    arguments = parser.parse_args()
    found = {}
    for count in arguments.groups:
        times_s = reforms(count, arguments.cycles)
        print(count, {way: f"{statistics.median(each):.3f} s" for way, each in times_s.items()}, file=sys.stderr, flush=True)
        found[count] = {way: summarize(each) for way, each in times_s.items()}
    print(json.dumps({"benchmark": "kept_groups", "machine": machine.describe(), "reform_s": found}, indent=2))


if __name__ == "__main__":
    main()
