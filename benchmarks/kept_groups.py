"""What would a recovery save that kept open the groups of which no member is lost? At most the time to open them again.

    python -m benchmarks.kept_groups > kept_groups.json

Four ranks on this machine, two "nodes" of two, break their generation and form it again, many times over. Each pair has K groups
of its own, as tensor-parallel and pipeline groups within a node are; the default group and one group across the nodes have to be
opened again in any case. K = 0 is what would be left if all of the K were kept, at no cost. Progress goes to stderr, JSON to
stdout.
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

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.stats import summarize
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.torch_internals import TCPStore

RANKS, REFORM_TIMEOUT_S = 4, 60.0


def rank_main(rank: int, port: int, kept: int, cycles: int, results: Connection) -> None:
    torch.set_num_threads(1)
    groups = Groups(record=None, host="127.0.0.1", on_broken=lambda _generation, _error: None)
    groups.init_default(rank=rank, world_size=RANKS, generation=1, store=TCPStore("127.0.0.1", port, is_master=False))
    across = dist.new_group([0, 2])
    pairs = [[dist.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2] for _ in range(kept)]
    times_s = []
    for generation in range(2, cycles + 2):
        dist.barrier()
        groups.break_generation(generation, "the benchmark")
        groups.have_ended()
        groups.let_go()
        store = TCPStore("127.0.0.1", port, is_master=False)
        began_s = time.perf_counter()
        groups.reform(generation=generation, store=store, timeout_s=REFORM_TIMEOUT_S, cancelled=threading.Event())
        times_s.append(time.perf_counter() - began_s)
        for group in (None, *pairs, *([across] if rank in (0, 2) else [])):
            value = torch.ones(1)
            dist.all_reduce(value, group=group)
            assert value == dist.get_world_size(group)
    results.send(times_s)
    results.close()
    groups.close()
    os._exit(0)  # as a rank does that has ended: no thread of torch is in the way


def reforms(kept: int, cycles: int) -> list[float]:
    """Returns the seconds of each reform, of the rank that took longest."""
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe() for _ in range(RANKS)]
    ranks = [
        context.Process(target=rank_main, args=(rank, store.port, kept, cycles, results), daemon=True)
        for rank, (_, results) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    times = [here.recv() for here, _ in pipes]
    for process in ranks:
        process.join()
    return [max(cycle) for cycle in zip(*times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=7)
    parser.add_argument("--groups", type=int, nargs="+", default=[0, 4, 16, 64])
    arguments = parser.parse_args()
    found = {}
    for kept in arguments.groups:
        times_s = reforms(kept, arguments.cycles)
        print(f"{kept} groups: {statistics.median(times_s):.3f} s", file=sys.stderr, flush=True)
        found[kept] = summarize(times_s)
    print(json.dumps({"benchmark": "kept_groups", "machine": machine.describe(), "reform_s": found}, indent=2))


if __name__ == "__main__":
    main()
