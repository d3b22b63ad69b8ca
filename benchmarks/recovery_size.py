"""How does the length of a recovery depend on the bytes of a rank's state, and on the number of process groups?

    python -m benchmarks.recovery_size --runs 3 > recovery_size.json

Two nodes of one rank and a spare; in each run a node is killed, and the job's own record of the recovery is kept, by phase. Every
byte of the state is unique, so all of it comes back from a replica. Sizes are four and sixteen times the first one. Each group is
used in each step. Progress goes to stderr, JSON to stdout.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import deadpool
from benchmarks import machine
from benchmarks.launched import Launched
from benchmarks.stats import rotated, summarize

STEPS, KILLED_IN_STEP = 12, 7
TENSOR_BYTES = 4 << 20
LIMIT_S = 120.0
TIMES = (1, 4, 16)
GROUPS = (1, 8, 32)


# ---------------------------------------------------------------- inside the job


class Adds(torch.optim.Optimizer):
    """Needs no gradients: they would take memory, and are no part of the state."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(1)


def train(size_bytes: int, groups: int) -> None:
    """One rank: no two ranks hold the same."""
    run = deadpool.join()
    torch.manual_seed(run.rank)
    tensors = [torch.rand(TENSOR_BYTES // 4) for _ in range(size_bytes // TENSOR_BYTES)]
    model = nn.ParameterDict({f"{run.rank}-{number}": nn.Parameter(tensor) for number, tensor in enumerate(tensors)})
    optimizer = Adds(model.parameters(), {})
    opened = [dist.new_group([*range(run.world_size)]) for _ in range(groups)]
    guard = run.protect(model=model, optimizer=optimizer)

    def train_step(step: int) -> None:
        for group in opened:
            dist.all_reduce(torch.ones(1), group=group)
        optimizer.step()

    for _ in guard.run(train_step, until=STEPS):
        pass


# ---------------------------------------------------------------- outside


def recovery(size_bytes: int, groups: int) -> dict[str, Any] | None:
    """Runs a job and returns its one recovery: seconds in all, and of each phase; None when it failed (stderr says why)."""
    folder = Path(tempfile.mkdtemp(prefix="dp-recovery-size-"))
    summary = folder / "summary.json"
    command = [
        sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nnodes", 2, "--spares", 1, "--summary-json", summary,
        "--log-dir", folder / "logs", "--inject", f"kill-node:1@{KILLED_IN_STEP}", __file__, "--in-job", size_bytes, groups,
    ]  # fmt: skip
    job = Launched([str(part) for part in command], folder, {})
    try:
        job.process.wait(LIMIT_S)
        (found,) = json.loads(summary.read_text())["recoveries"]
    except (OSError, ValueError, KeyError, TimeoutError) as error:
        print(f"{size_bytes} bytes, {groups} groups: {error!r}; files are in {folder}\n{job.tail()}", file=sys.stderr)
        return None
    finally:
        job.end()
    shutil.rmtree(folder)
    return {"total_s": found["total_s"], "phases_s": found["phases_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mb", type=int, default=16, help="the smallest state of a rank; the others are 4 and 16 times as large")
    parser.add_argument("--in-job", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_job:
        train(*arguments.in_job)
        return
    smallest = arguments.mb << 20
    cases = {f"{times * arguments.mb} MB": (times * smallest, GROUPS[0]) for times in TIMES}
    cases |= {f"{groups} groups": (smallest, groups) for groups in GROUPS[1:]}
    described, found = machine.describe(), {case: list[dict[str, Any]]() for case in cases}
    for turn in range(arguments.runs):
        for case in rotated([*cases], turn):
            one = recovery(*cases[case])
            print(f"{case}: {one and one['total_s']} s", file=sys.stderr, flush=True)
            if one is not None:
                found[case].append(one)
    report = {case: summed_up(runs) for case, runs in found.items()}
    print(json.dumps({"benchmark": "recovery_size", "machine": described, "options": vars(arguments), "cases": report}, indent=2))


def summed_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    phases = runs[0]["phases_s"] if runs else ()
    return {
        "total_s": summarize([run["total_s"] for run in runs]),
        "phases_s": {phase: summarize([run["phases_s"][phase] for run in runs])["median"] for phase in phases},
        "raw": runs,
    }


if __name__ == "__main__":
    main()
