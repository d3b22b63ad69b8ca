"""What does it cost the training that a persistent checkpoint is being written? Steps under it and steps beside it, in one run.

    python -m benchmarks.checkpoints > checkpoints.json

A job on two nodes of two ranks writes a checkpoint every so many steps. A step counts as *under* one if it overlaps with the time
from the step that made the checkpoint's state to its completion, as events.jsonl tells; a step's time is the slowest rank's.
`stall`: what optimizer.step has waited for copies, of the rank that waited longest. Progress goes to stderr, JSON to stdout.
"""

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.launched import Launched
from benchmarks.stats import quantile, summarize

NODES, RANKS_PER_NODE = 2, 2
WARM_UP_STEPS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`began_s`, `ended_s`: wall clock, the first rank's and the last one's. `stall_s`: of the rank that waited longest."""

    began_s: float
    ended_s: float
    duration_s: float
    stall_s: float


def train(steps: int, out: Path, options: list[str]) -> None:
    """One rank: writes when each step ended, and how long it had waited for protection by then."""
    from benchmarks.training import protected_training  # imports torch, which who starts the job has no need of

    run, guard, train_step = protected_training(options, steps)
    seen = [(time.time(), guard.counters.exposed_stall_s) for _ in guard.run(train_step, until=steps)]
    (out / f"rank-{run.rank}.json").write_text(json.dumps(seen))


def steps_of(ranks: Sequence[Sequence[tuple[float, float]]]) -> list[Step]:
    """Returns the steps from the second one on, from each rank's (time, stall so far) at the end of each step."""
    found = []
    for before, after in zip(zip(*ranks, strict=True), list(zip(*ranks, strict=True))[1:], strict=False):
        pairs = list(zip(before, after, strict=True))
        found.append(
            Step(
                began_s=min(earlier for (earlier, _), _ in pairs),
                ended_s=max(later for _, (later, _) in pairs),
                duration_s=max(later - earlier for (earlier, _), (later, _) in pairs),
                stall_s=max(later - earlier for (_, earlier), (_, later) in pairs),
            )
        )
    return found


def under(step: Step, windows: Sequence[tuple[float, float]]) -> bool:
    return any(step.began_s < end_s and step.ended_s > begin_s for begin_s, end_s in windows)


def windows_in(events: Sequence[dict[str, Any]], ranks: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Returns (begin, end) in wall-clock seconds of each checkpoint: from its state's last rank on until it is complete."""
    written = [each for each in events if each["event"] == "checkpoint"]
    ends_s = [datetime.fromisoformat(each["time"]).timestamp() for each in written]
    begins_s = [max(seen[each["step"] - 1][0] for seen in ranks) for each in written]
    return list(zip(begins_s, ends_s, strict=True))


def report(steps: Sequence[Step], windows: Sequence[tuple[float, float]]) -> dict[str, Any]:
    counted = steps[WARM_UP_STEPS:]
    kinds = {
        "under_a_checkpoint": [step for step in counted if under(step, windows)],
        "beside": [step for step in counted if not under(step, windows)],
    }
    return {
        "checkpoints": len(windows),
        "written_in_s": summarize([end_s - begin_s for begin_s, end_s in windows]),
        "step_s": {kind: _spread([step.duration_s for step in found]) for kind, found in kinds.items()},
        "stall_s": {kind: _spread([step.stall_s for step in found]) for kind, found in kinds.items()},
        "stall_s_in_all": {kind: round(sum(step.stall_s for step in found), 4) for kind, found in kinds.items()},
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return summarize(values) | {"p99": round(quantile(values, 0.99), 4) if values else None}


def launch(args: argparse.Namespace) -> dict[str, Any] | None:
    """Runs the job; None when it failed (the reason is on stderr)."""
    folder = Path(tempfile.mkdtemp(prefix="dp-checkpoints-"))
    command = [
        sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nnodes", NODES, "--nproc-per-node", RANKS_PER_NODE,
        "--log-dir", folder / "logs", "--checkpoint-dir", folder / "checkpoints", "--checkpoint-every", args.every,
        __file__, "--in-job", folder, "--steps", args.steps, "--", *args.options,
    ]  # fmt: skip
    job = Launched([str(part) for part in command], folder, {})
    try:
        code = job.process.wait()
    finally:
        job.end()
    if code:
        print(f"the job ended with exit code {code}; its files are in {folder}\n{job.tail()}", file=sys.stderr)
        return None
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(NODES * RANKS_PER_NODE)]
    events = [json.loads(line) for line in (folder / "logs" / "events.jsonl").read_text().splitlines()]
    shutil.rmtree(folder)
    return report(steps_of(ranks), windows_in(events, ranks))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=40, help="steps from one checkpoint to the next")
    parser.add_argument("--in-job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help="after --: options of train_gpt.py (sizes, --parallel)")
    args = parser.parse_args()
    if args.in_job:
        train(args.steps, args.in_job, args.options)
        return 0
    described = machine.describe()
    found = launch(args)
    if found is None:
        return 1
    training = {"options": args.options, "steps": args.steps, "every": args.every, "ranks": NODES * RANKS_PER_NODE}
    head = {"benchmark": "checkpoints", "machine": described, "load_after": round(os.getloadavg()[0], 2), "training": training}
    print(json.dumps(head | found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
