"""What does a failure cost under each strategy? The same DDP training, four ways of going on, and what the simulator makes of it.

    python benchmarks/strategies.py --runs 3 > strategies.json
    python benchmarks/strategies.py --plot strategies.json strategies.png     # needs matplotlib

hot-swap             a node is killed, a spare takes its place, the others keep their processes (deadpool-launch)
memory-restart       the same failure; all ranks begin again with the states from the hosts' memory (--on-loss restart)
exclude              the same failure; the others go on without the lost ranks, which return on a spare (--on-loss exclude)
checkpoint-restart   torchrun at its best, from a checkpoint on disk every 10 steps; one worker is killed five steps after one

Time lost is from the kill until every rank that goes on has completed a step that was new; with `exclude` both stops, the return
too, and beside it `slowed_s`: what the lost ranks have not computed until then. From the medians, the steps that were done again
and the step's time, `deadpool simulate`'s own code predicts the goodput of a training on so many nodes at each failure rate.
Beside it stands what follows from the measured time lost alone, steps with fewer ranks counted by their share. `losses`: whether
all are the unbroken run's, to the bit; `loss_apart`: by how much the mean of a step differs from it at most. Progress goes to
stderr, JSON to stdout.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.harness import Harness, Result
from benchmarks.plot import plot_strategies
from benchmarks.recovery import measure_all
from benchmarks.systems import CHECKPOINT_EVERY, NODES, RANKS_PER_NODE, Training
from deadpool.cli.simulate.cluster import HOUR_S, RecoveryTimes, SimulatedCluster, Strategy
from deadpool.cli.simulate.estimate import estimate

SYSTEMS = {
    Strategy.HOT_SWAP: "deadpool-kill-node",
    Strategy.MEMORY_RESTART: "deadpool-kill-node-restart",
    Strategy.EXCLUDE: "deadpool-kill-node-exclude",
    Strategy.CHECKPOINT_RESTART: "torchrun",
}
STOPS = {Strategy.EXCLUDE: 2}  # of a failure, in the simulator as well: 1 for the others
REPAIR_S = 1.0  # a spare is there
FAILURES_PER_HOUR = (0.5, 2.0, 10.0, 30.0)
SIMULATED_STEPS = 200_000
SIMULATED_RUNS = 10
SEED = 1


def compared(summaries: dict[str, Any]) -> dict[str, Any]:
    """Returns for each strategy what a failure costs, and the goodput at each failure rate: as measured, and as simulated."""
    figures = {strategy: summaries[name] for strategy, name in SYSTEMS.items() if summaries.get(name, {}).get("total_s")}
    times = {strategy: without_replay_s(figures[strategy]) / STOPS.get(strategy, 1) for strategy in figures}
    found = {}
    for strategy, figure in figures.items():
        lost_s, step_s = figure["total_s"]["median"], figure["step_s"]["median"]
        slowed_s = figure.get("slowed_s", {}).get("median") or 0.0
        away_s = figure.get("away_s", {}).get("median") or REPAIR_S
        found[strategy.value] = {
            "time_lost_s": figure["total_s"],
            "steps_again": figure["steps_reexecuted"],
            "step_s": step_s,
            "slowed_s": round(slowed_s, 3),
            "loss_apart": figure.get("loss_apart"),
            "losses": f"{figure['bitwise']} of {figure['runs']} runs are the unbroken one to the bit",
            "steps_per_hour": {
                f"{rate:g} failures an hour": {
                    "measured": round(HOUR_S / (step_s + rate * (lost_s + slowed_s) * step_s / HOUR_S)),
                    "simulated": round(HOUR_S / step_s * simulated_goodput(strategy, times, step_s, rate, away_s)),
                }
                for rate in FAILURES_PER_HOUR
            },
        }
    return found


def without_replay_s(figure: dict[str, Any]) -> float:
    """Returns how long the training stood still, without the steps that were done again: the simulator counts those itself."""
    again_s = (figure["steps_reexecuted"]["median"] or 0.0) * figure["step_s"]["median"]
    return float(max(0.0, figure["total_s"]["median"] - again_s))


def simulated_goodput(
    strategy: Strategy, times: dict[Strategy, float], step_s: float, failures_per_hour: float, away_s: float
) -> float:
    """`away_s`: how long the others go on without the lost ranks, from the end of the first stop to the second."""
    still_s = times[strategy]
    cluster = SimulatedCluster(
        nodes=NODES, gpus_per_node=RANKS_PER_NODE, spares=NODES, steps=SIMULATED_STEPS, step_s=step_s,
        failures_per_node_day=24 * failures_per_hour / NODES, transient_share=0.0, rack_nodes=0, failures_per_rack_day=0.0,
        repair_s=still_s + away_s, checkpoint_every=CHECKPOINT_EVERY, checkpoint_s=0.0, replica_distance=1, nodes_per_replica=1,
    )  # fmt: skip
    recovery = RecoveryTimes(restart_s=still_s, memory_restart_s=still_s, exclude_s=still_s, swap_s=still_s, transient_s=still_s)
    return estimate(cluster, strategy, recovery, runs=SIMULATED_RUNS, seed=SEED).goodput.mean


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each strategy")
    parser.add_argument("--steps", type=int, default=95)
    parser.add_argument("--injection-step", type=int, default=65, help="five steps after a checkpoint: the average age of one")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="a run that waits longer has failed")
    parser.add_argument("--plot", type=Path, nargs=2, metavar=("FILE", "IMAGE"), help="draw what FILE has measured, and exit")
    parser.add_argument("options", nargs="*", help="after --: further options of train_gpt.py (sizes)")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if args.plot:
        plot_strategies(json.loads(args.plot[0].read_text()), args.plot[1])
        return 0
    training = Training(
        steps=args.steps, injection_step=args.injection_step, options=("--parallel", "ddp", *args.options),
        heartbeat_interval_s=1.0, heartbeat_timeout_s=3.0,
    )  # fmt: skip
    work = Path(tempfile.mkdtemp(prefix="deadpool-benchmark-"))
    measured: dict[str, Any] = measure_all(Harness(training, work, work, args.limit), list(SYSTEMS.values()), args.runs, {})
    raw: list[Result] = measured["raw"]
    report = {
        "benchmark": "strategies",
        "machine": machine.describe(),
        "training": dataclasses.asdict(training),
        "strategies": compared(measured["systems"]),
        "unbroken": measured["unbroken"],
        "raw": raw,
    }
    print(json.dumps(report, indent=2))
    return 0 if all(result["ok"] for result in raw) else 1


if __name__ == "__main__":
    sys.exit(main())
