"""How fast are copies, checksums, replicas and restores, beside what the machine can do at most? Sizes are per rank.

    python -m benchmarks.data_plane --mb 64 256 1024 > data_plane.json
    python -m benchmarks.data_plane --mb 1024 --frozen 0.99

One rank's protection and the holder of its replicas, each in a process of its own; compute is a wait, so that both cores are
free for copies. For each size, `--repeats` times, everything kept:

memcpy, xxh3, socket_loop, mpi_loop   the ceilings (ceilings.py), the first two in turns with the snapshots; mpi_loop: null where
                   mpi4py or mpiexec is missing
copy, snapshot     from the boundary until the training may go on changing the tensors; until the slot is sealed
checksum           every item of a sealed slot read again
replicate          a sealed slot sent to the holder, verified and sealed there
commit             snapshot and replica of one state, from the boundary until it is committed
replicate_mpi, commit_mpi   the same two by an MPI pair (--h2h mpi); null as mpi_loop is
restore_own        a process made to hold the state again, from its own slot
restore_replica    the same from the holder
restore_near       the same from a holder on its own node, whose slot it reads where it lies
training           `--steps` steps of `--compute-s` each, with --snapshot-every 1 and with auto, which decides as in a job:
                   what a step takes by itself, what it waits for copies, the share of that, and how many states are committed
ticks              a thread that computes in short pieces while a state is copied and sent, beside the same thread alone: how long
                   it waits for the interpreter's lock in all, and its longest tick (interpreter_lock.py)

It takes seven times the state in memory, two of it for the replicas. Progress goes to stderr, JSON to stdout.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import ceilings, machine
from benchmarks.interpreter_lock import tick
from benchmarks.mpi_pair import mpi_pair
from benchmarks.protected_rank import SETTLING_STATES, TOKEN, HolderProcess, ProtectedRank, folder_of, tensors
from benchmarks.stats import summarize
from deadpool.proto.messages import Endpoint, Source, SourceKind
from deadpool.trainer_hooks.protection.interval import AUTO
from deadpool.trainer_hooks.protection.restore import from_elsewhere, from_own_slot
from deadpool.trainer_hooks.protection.vaults import Vaults

CEILINGS: dict[str, Callable[[int, int], list[float] | None]] = {
    "socket_loop": ceilings.socket_loop,
    "mpi_loop": ceilings.mpi_loop,
}


def of_snapshots(rank: ProtectedRank, repeats: int) -> dict[str, list[float]]:
    """Returns GB/s of copy, snapshot, checksum and restore from the own slot, of a rank without holders, and of the ceilings."""
    found: dict[str, list[float]] = {name: [] for name in ("memcpy", "xxh3", "copy", "snapshot", "checksum", "restore_own")}
    memory = ceilings.Memory(rank.size_bytes)
    rank.settle()
    memory.memcpy()
    for _ in range(repeats):
        found["memcpy"].append(memory.memcpy())
        found["xxh3"].append(memory.xxh3())
        boundary = rank.train_step()
        boundary.copied.wait()
        found["copy"].append(rate(rank, rank.handed_over_s))
        boundary.settled.wait()
        found["snapshot"].append(rate(rank, rank.handed_over_s, boundary.settled.at_s))
        rank.wait_committed()
        began_s = time.monotonic()
        assert rank.slots.find_whole(boundary.state) is not None
        found["checksum"].append(rate(rank, began_s))
        began_s = time.monotonic()
        from_own_slot(rank.state, rank.slots, boundary.state, "rank")
        found["restore_own"].append(rate(rank, began_s))
    return found


def of_replicas(rank: ProtectedRank, holder: Endpoint, repeats: int) -> dict[str, list[float]]:
    """Returns GB/s of replicate, commit and restore from the holder."""
    found: dict[str, list[float]] = {"replicate": [], "commit": [], "restore_replica": [], "restore_near": []}
    rank.settle()
    for _ in range(repeats):
        commit, replicate = sent(rank)
        found["commit"].append(commit)
        found["replicate"].append(replicate)
        state = rank.newest
        source = Source(rank=0, kind=SourceKind.REPLICA, slot_generation=state.generation, endpoint=holder)
        began_s = time.monotonic()
        from_elsewhere(rank.state, source, state.step, Vaults(token=TOKEN))
        found["restore_replica"].append(rate(rank, began_s))
        began_s = time.monotonic()
        from_elsewhere(rank.state, source, state.step, Vaults(token=TOKEN, node_id=holder.node_id, folder=folder_of(holder)))
        found["restore_near"].append(rate(rank, began_s))
    return found


def of_pair(parameters: nn.ParameterList, holder: Endpoint, repeats: int) -> dict[str, list[float]]:
    """Returns GB/s of replicate and commit by an MPI pair."""
    with ProtectedRank(parameters, [holder], by_pair=True) as rank, mpi_pair(rank.vault.folder, folder_of(holder), holder):
        rank.settle()
        commits, replicas = zip(*(sent(rank) for _ in range(repeats)), strict=True)
    return {"replicate_mpi": [*replicas], "commit_mpi": [*commits]}


def sent(rank: ProtectedRank) -> tuple[float, float]:
    """Returns GB/s of a state until it is committed, and of its replica, sent once more."""
    rank.train_step()
    rank.wait_committed()
    commit = rate(rank, rank.handed_over_s)
    slot = rank.slots.find(rank.newest)
    assert slot is not None
    began_s = time.monotonic()
    rank.send_again(slot)
    return commit, rate(rank, began_s)


def of_training(rank: ProtectedRank, steps: int, compute_s: float) -> dict[str, Any]:
    """Returns what steps that compute for so long have waited for, how many states were committed, and the bytes moved."""
    counters, stalls_s = rank.counters, list[float]()
    rank.settle()
    settled = len(rank.commits)
    while len(rank.commits) < settled + SETTLING_STATES + 1:  # auto has measured so many states, and has settled on an interval
        rank.run_step(compute_s)
    first, copied, replicated = rank.step, counters.copied_bytes, counters.replicated_bytes
    while len(stalls_s) < max(steps, SETTLING_STATES * rank.protector.interval):
        before_s = counters.exposed_stall_s
        rank.run_step(compute_s)
        stalls_s.append(round(counters.exposed_stall_s - before_s, 4))
    steps = len(stalls_s)
    rank.wait_committed()
    return {
        "stall_s": summarize(stalls_s) | {"raw": stalls_s},
        "step_s": round(rank.pace.step_s(), 4),
        "stall_share": round(sum(stalls_s) / steps / rank.pace.step_s(), 4),
        "interval": rank.protector.interval,
        "committed_steps": len([step for step in rank.commits if step >= first]),
        "copied_bytes_per_step": (counters.copied_bytes - copied) // steps,
        "replicated_bytes_per_step": (counters.replicated_bytes - replicated) // steps,
    }


def of_ticks(rank: ProtectedRank, repeats: int) -> dict[str, list[dict[str, float]]]:
    """Returns how a thread of the rank ticks while a state is protected, and for as long while none is."""
    found: dict[str, list[dict[str, float]]] = {"protected": [], "alone": []}
    for _ in range(repeats):
        rank.train_step()
        protected = tick(lambda: rank.step - 1 not in rank.commits[-1:])
        rank.wait_committed()
        until_s = time.monotonic() + protected.wall_s
        alone = tick(lambda until_s=until_s: time.monotonic() < until_s)  # type: ignore[misc]
        found["protected"].append(protected.figures())
        found["alone"].append(alone.figures())
    return found


def rate(rank: ProtectedRank, began_s: float, ended_s: float = 0.0) -> float:
    """Returns GB/s up to that time; 0: to now."""
    return rank.size_bytes / ((ended_s or time.monotonic()) - began_s) / 1e9


def measure(size_bytes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    repeats = arguments.repeats
    found: dict[str, list[float] | None] = {name: ceiling(size_bytes, repeats) for name, ceiling in CEILINGS.items()}
    holder = HolderProcess()
    try:
        parameters = tensors(size_bytes, arguments.tensor_kb << 10, arguments.frozen)
        with ProtectedRank(parameters, []) as rank:
            found |= of_snapshots(rank, repeats)
        with ProtectedRank(parameters, [holder.endpoint]) as rank:
            found |= of_replicas(rank, holder.endpoint, repeats)
            ticks = of_ticks(rank, repeats)
        found |= {"replicate_mpi": None, "commit_mpi": None}
        if found["mpi_loop"] is not None:
            found |= of_pair(parameters, holder.endpoint, repeats)
        training = {}
        for every in (1, AUTO):
            with ProtectedRank(parameters, [holder.endpoint], every=every) as rank:
                training[str(every or "auto")] = of_training(rank, arguments.steps, arguments.compute_s)
    finally:
        holder.close()
    figures = {name: summarize(each) | {"raw": [round(one, 3) for one in each]} if each else None for name, each in found.items()}
    return {"size_bytes": size_bytes, "gb_s": figures, "shares": shares(found), "training": training, "ticks": ticks}


def shares(found: dict[str, list[float] | None]) -> dict[str, float]:
    """Returns how near the medians come to the ceilings beside them, and to the slower one alone when both run at once."""

    def median(name: str) -> float:
        return float(summarize(found[name] or [])["median"] or 0.0)

    return {
        "snapshot_of_slower_of_memcpy_and_xxh3": round(median("snapshot") / min(median("memcpy"), median("xxh3")), 3),
        "replicate_of_socket_loop": round(median("replicate") / median("socket_loop"), 3),
        "commit_time_over_slower_alone": round(min(median("snapshot"), median("replicate")) / median("commit"), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, nargs="+", default=[64, 256, 1024], help="state of the rank, up to 4096")
    parser.add_argument("--tensor-kb", type=int, default=16 << 10, help="of each tensor")
    parser.add_argument("--frozen", type=float, default=0.0, help="share of the state that is never trained")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compute-s", type=float, default=0.1, help="of each step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    described, results = machine.describe(), []
    for size_mb in arguments.mb:
        results.append(measure(size_mb << 20, arguments))
        stalls = {every: found["stall_share"] for every, found in results[-1]["training"].items()}
        print(f"{size_mb} MB: {results[-1]['shares']}, stall {stalls}", file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "data_plane", "machine": described, "options": vars(arguments), "sizes": results}, indent=2))


if __name__ == "__main__":
    main()
