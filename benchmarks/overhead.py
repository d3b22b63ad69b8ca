"""What does protection cost while nothing fails? Steps with and without it, in turns, in the same processes and groups.

    python benchmarks/overhead.py > overhead.json            (DDP + ZeRO; -- --parallel fsdp for FSDP2)
    python benchmarks/overhead.py --tensors 4000             (a state of so many small tensors; what computes is a wait)

Starts itself under deadpool-launch on two nodes of two ranks. Blocks of steps alternate (with, without, without, with, ...), so
that slow drifts of the machine cancel; the first steps of each block are not counted. A step's time is the slowest rank's, from
one completed step to the next; `cpu_s` is a rank's processor time for it, all threads. `job_cpu_s`: the same for every process of
the job, agents, supervisor and launcher too, divided by the ranks, over whole blocks. Progress goes to stderr, JSON to stdout.
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.launched import Launched
from benchmarks.stats import quantile, summarize
from benchmarks.training import many_tensors, protected_training

NODES, RANKS_PER_NODE = 2, 2
RANKS = NODES * RANKS_PER_NODE
WARM_UP_STEPS = 20
UNCOUNTED_STEPS = 3  # of each block: the last snapshot of the block before may still be under way
LARGE_BYTES = 256 << 20  # for a memcpy that no cache helps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """Which steps are protected. A pair is two neighbouring blocks, one of each kind."""

    pairs: int
    block_steps: int
    tensors: int = 0  # 0: the example

    @property
    def steps(self) -> int:
        return WARM_UP_STEPS + 2 * self.pairs * self.block_steps

    def block(self, step: int) -> int:
        """Returns the number of the step's block, -1 while warming up."""
        return (step - WARM_UP_STEPS) // self.block_steps if step >= WARM_UP_STEPS else -1

    def protected(self, step: int) -> bool:
        block = self.block(step)
        return block < 0 or block % 4 in (0, 3)

    def counted(self, step: int) -> bool:
        return step >= WARM_UP_STEPS and (step - WARM_UP_STEPS) % self.block_steps >= UNCOUNTED_STEPS


# ---------------------------------------------------------------- inside the job


def train(plan: BlockPlan, out: Path, options: list[str]) -> None:
    """One rank: trains by the plan and writes its step times and what its guard has counted."""
    run, guard, train_step = many_tensors(plan.tensors) if plan.tensors else protected_training(options, plan.steps)
    times_s: dict[int, float] = {}
    cpu_s: dict[int, float] = {}
    job_cpu_s: dict[int, float] = {}  # by block: what all processes have taken when it begins
    last_s, last_cpu_s = time.perf_counter(), time.process_time()
    for step, _ in guard.run(train_step, until=plan.steps):
        now_s, now_cpu_s = time.perf_counter(), time.process_time()
        times_s[step], last_s = now_s - last_s, now_s
        cpu_s[step], last_cpu_s = now_cpu_s - last_cpu_s, now_cpu_s
        if step + 1 < plan.steps:
            guard.protecting = plan.protected(step + 1)
        if run.rank == 0 and plan.block(step + 1) > plan.block(step):
            print(f"block {plan.block(step) + 1} of {2 * plan.pairs}", file=sys.stderr, flush=True)
            job_cpu_s[plan.block(step + 1)] = spent_by_job_s()
    found = {"times_s": times_s, "cpu_s": cpu_s, "job_cpu_s": job_cpu_s, "counters": dataclasses.asdict(guard.counters)}
    (out / f"rank-{run.rank}.json").write_text(json.dumps(found))


def spent_by_job_s() -> float:
    """Returns the processor time that the launcher and all that live under it have taken so far."""
    launcher = [each for each in psutil.Process().parents() if "deadpool.cli.launch" in each.cmdline()][-1]
    times = [each.cpu_times() for each in (launcher, *launcher.children(recursive=True))]
    return sum(each.user + each.system for each in times)


# ---------------------------------------------------------------- outside


def slowest(ranks: list[dict[str, Any]]) -> dict[int, float]:
    """Returns each step's time: the slowest rank's."""
    return {int(step): max(rank["times_s"][step] for rank in ranks) for step in ranks[0]["times_s"]}


def pair_medians(plan: BlockPlan, times_s: dict[int, float]) -> Iterator[tuple[float, float]]:
    """Yields, for each pair of blocks, the median step with protection and without."""
    for pair in range(plan.pairs):
        steps = [step for step in times_s if plan.block(step) // 2 == pair and plan.counted(step)]
        yield (
            statistics.median(times_s[step] for step in steps if plan.protected(step)),
            statistics.median(times_s[step] for step in steps if not plan.protected(step)),
        )


def job_cpu(plan: BlockPlan, begun_s: dict[int, float]) -> dict[str, float]:
    """Returns the job's mean processor time for a rank's step, with protection and without."""
    found: dict[str, list[float]] = {"protected": [], "unprotected": []}
    for block in range(2 * plan.pairs):
        kind = "protected" if plan.protected(WARM_UP_STEPS + block * plan.block_steps) else "unprotected"
        found[kind].append((begun_s[block + 1] - begun_s[block]) / (plan.block_steps * RANKS))
    return {kind: round(statistics.mean(each), 5) for kind, each in found.items()}


def report(plan: BlockPlan, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    times_s = slowest(ranks)
    counted = [step for step in times_s if plan.counted(step)]
    kinds = {
        "protected": [times_s[step] for step in counted if plan.protected(step)],
        "unprotected": [times_s[step] for step in counted if not plan.protected(step)],
    }
    pairs = list(pair_medians(plan, times_s))
    spent_s = {int(step): statistics.mean(rank["cpu_s"][step] for rank in ranks) for step in ranks[0]["cpu_s"]}
    cpu = {
        kind: statistics.mean(spent_s[step] for step in counted if plan.protected(step) is on)
        for kind, on in (("protected", True), ("unprotected", False))
    }
    job = job_cpu(plan, {int(block): spent for block, spent in ranks[0]["job_cpu_s"].items()})
    total = {name: sum(rank["counters"][name] for rank in ranks) for name in ranks[0]["counters"]}
    snapshots = max(1, total["commits"])
    copied_bytes, replicated_bytes = total["copied_bytes"] // snapshots, total["replicated_bytes"] // snapshots
    return {
        "step_s": {kind: summarize(times) | {"p99": round(quantile(times, 0.99), 4)} for kind, times in kinds.items()},
        "ratio_of_medians": round(statistics.median(kinds["protected"]) / statistics.median(kinds["unprotected"]), 4),
        "ratio_of_p99": round(quantile(kinds["protected"], 0.99) / quantile(kinds["unprotected"], 0.99), 4),
        "ratio_in_pairs": summarize([protected / unprotected for protected, unprotected in pairs]),
        "added_s_in_pairs": summarize([protected - unprotected for protected, unprotected in pairs]),
        "cpu_s": {kind: round(each, 5) for kind, each in cpu.items()},
        "added_cpu_s": round(cpu["protected"] - cpu["unprotected"], 5),
        "job_cpu_s": job,
        "added_job_cpu_s": round(job["protected"] - job["unprotected"], 5),
        "per_rank_and_step": {"copied_bytes": copied_bytes, "replicated_bytes": replicated_bytes},
        "copy_gb_s": rate(total["copied_bytes"], total["copy_s"]),
        "replicate_gb_s": rate(total["replicated_bytes"], total["replicate_s"]),
        "memcpy_gb_s": {
            str(size): round(machine.memcpy_gb_s(size), 2)
            for size in sorted({copied_bytes, replicated_bytes, LARGE_BYTES})
            if size
        },
        "exposed_stall_s": round(total["exposed_stall_s"], 4),
        "exposed_stall_s_per_rank_and_step": round(total["exposed_stall_s"] / snapshots, 6),
        "commits": total["commits"],
        "raw": {"pairs": pairs, "counters": [rank["counters"] for rank in ranks]},
    }


def rate(size_bytes: int, duration_s: float) -> float | None:
    return round(size_bytes / duration_s / 1e9, 3) if duration_s else None


def launch(plan: BlockPlan, options: list[str]) -> list[dict[str, Any]] | None:
    """Runs the job and returns what each rank wrote; None when it failed (the reason is on stderr)."""
    folder = Path(tempfile.mkdtemp(prefix="dp-overhead-"))
    command = [
        sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nnodes", NODES, "--nproc-per-node", RANKS_PER_NODE,
        "--log-dir", folder / "logs", __file__, "--in-job", folder, "--pairs", plan.pairs, "--block-steps", plan.block_steps,
        "--tensors", plan.tensors,
        "--", *options,
    ]  # fmt: skip
    job = Launched([str(part) for part in command], folder, {})
    try:
        code = job.process.wait()
    finally:
        job.end()
    if code:
        print(f"the job ended with exit code {code}; its files are in {folder}\n{job.tail()}", file=sys.stderr)
        return None
    found = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    shutil.rmtree(folder)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks")
    parser.add_argument("--block-steps", type=int, default=20)
    parser.add_argument("--tensors", type=int, default=0, metavar="N", help="a state of so many small tensors, not the example's")
    parser.add_argument("--in-job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help="after --: options of train_gpt.py (sizes, --parallel)")
    args = parser.parse_args()
    plan = BlockPlan(pairs=args.pairs, block_steps=args.block_steps, tensors=args.tensors)
    if args.in_job:
        train(plan, args.in_job, args.options)
        return 0
    described = machine.describe()
    ranks = launch(plan, args.options)
    if ranks is None:
        return 1
    training = {"options": args.options, **dataclasses.asdict(plan), "ranks": RANKS}
    head = {"benchmark": "overhead", "machine": described, "load_after": round(os.getloadavg()[0], 2), "training": training}
    print(json.dumps(head | report(plan, ranks), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
