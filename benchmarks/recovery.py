"""How long does training stand still after a failure? DeadPool beside torchrun (and torchft and NVRx), one after the other.

    python benchmarks/recovery.py --runs 5 > recovery.json
    python benchmarks/recovery.py --runs 5 --rivals --work build/rivals > recovery.json

    python benchmarks/recovery.py --runs 5 --only deadpool-kill-node --only deadpool-kill-rank -- --parallel pp

    python benchmarks/recovery.py --construction 5 --readiness --runs 1 --into figures.json    # again and again
    python benchmarks/recovery.py --plot figures.json docs/recovery.svg

Every system trains examples/train_gpt.py with the same sizes on four CPU ranks, and in the middle of the same step one failure
is injected. The figure is the time from the kill until every rank has completed a step that was new. Systems take turns within
one run of the benchmark, so that what else the machine does hits all of them. Progress goes to stderr, JSON to stdout. With
--into the runs are added to those that a file holds already, which are summed up together: it can be run in portions.

deadpool-kill-node   two nodes of two ranks and a spare; one node is killed, agent and ranks at the same time
deadpool-kill-rank   the same; one rank's process is killed
deadpool-drain       the same; a node is to be free: its ranks move to the spare, which has built them before
deadpool-kill-node-cold, -hot-met, -hot-missed   with --readiness: the spare is cold; hot for the killed node; hot for another one
torchrun             its best case: one agent for all ranks, a store of its own per attempt, a checkpoint on disk every 10 steps;
                     one worker is killed. (A node lost under torchrun takes about twice as long.)
torchft, nvrx        with --rivals: one worker is killed; heartbeat timeouts equal to DeadPool's
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
from benchmarks.harness import BY_DEFAULT, OURS, Harness, Result, family
from benchmarks.plot import plot_recoveries
from benchmarks.rivals.install import install
from benchmarks.stats import rotated, summarize
from benchmarks.systems import Training

RIVALS = ("torchft", "nvrx")
LAYERS = 6  # of a model whose size is given
PHASES = ("detect", "decide", "quiesce", "plan", "reform", "restore", "first_step")


def summed_up(system: str, results: list[Result]) -> dict[str, Any]:
    """Returns medians and spread of one system's runs; failed runs are counted, not measured."""
    good = [result for result in results if result["system"] == system and result["ok"]]

    def spread(name: str) -> dict[str, Any]:
        return summarize([result[name] for result in good if result.get(name) is not None])

    figures: dict[str, Any] = {
        "runs": len([result for result in results if result["system"] == system]),
        "failed": len([result for result in results if result["system"] == system and not result["ok"]]),
        "bitwise": sum(bool(result["bitwise"]) for result in good),
        **{name: spread(name) for name in ("total_s", "silent_s", "steps_reexecuted", "step_s", "loss_apart")},
    }
    if system in OURS:
        if OURS[system].on_loss == "exclude":
            figures |= {name: spread(name) for name in ("away_s", "away_steps", "slowed_s")}
        figures["phases_s"] = {phase: summarize([result["phases_s"][phase] for result in good]) for phase in PHASES}
    else:
        figures |= {name: spread(name) for name in ("first_line_s", "any_step_s")}
    return figures


def ratios(summaries: dict[str, Any]) -> dict[str, float]:
    """Returns how many times longer each other system stands still than each of ours, by medians."""
    found = {}
    for ours in OURS:
        for other in summaries.keys() - OURS.keys():
            if ours not in summaries:
                continue
            ours_s, other_s = summaries[ours]["total_s"]["median"], summaries[other]["total_s"]["median"]
            if ours_s and other_s:
                found[f"{other} / {ours}"] = round(other_s / ours_s, 2)
    return found


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each system")
    parser.add_argument("--rivals", action="store_true", help="torchft and NVRx too, each in a venv of its own under --work")
    parser.add_argument("--only", action="append", metavar="SYSTEM", help="only this system (repeatable)")
    parser.add_argument("--readiness", action="store_true", help="also a node killed with cold and with hot spares")
    parser.add_argument("--work", type=Path, help="folder for runs and venvs; default: a temporary one")
    parser.add_argument("--injection-step", type=int, default=65, help="five steps after a checkpoint: the average age of one")
    parser.add_argument("--steps", type=int, default=95)
    parser.add_argument(
        "--construction",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="added to building the model, in every system but the rivals",
    )
    parser.add_argument(
        "--model-params", type=int, metavar="N", help="a model with about so many parameters, on few tokens, in every system"
    )
    parser.add_argument("--into", type=Path, metavar="FILE", help="add the runs to those in this file, and sum all of them up")
    parser.add_argument("--plot", type=Path, nargs=2, metavar=("FILE", "IMAGE"), help="draw what --into has gathered, and exit")
    parser.add_argument("--heartbeat-interval", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--heartbeat-timeout", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="a run that waits longer has failed")
    parser.add_argument("options", nargs="*", help="after --: further options of train_gpt.py (sizes)")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if args.plot:
        plot_recoveries(json.loads(args.plot[0].read_text()), args.plot[1])
        return 0
    known = [*(name for name in OURS if OURS[name].on_loss == "swap"), "torchrun", *(RIVALS if args.rivals else ())]
    names = [name for name in known if name in BY_DEFAULT or name not in OURS or args.readiness]
    if unknown := set(args.only or ()) - set(known):
        print(f"unknown system: {', '.join(sorted(unknown))}; known here: {', '.join(known)}", file=sys.stderr)
        return 2
    names = [name for name in known if name in (args.only or names)]
    training = Training(
        steps=args.steps, injection_step=args.injection_step, options=(*of_size(args.model_params), *args.options),
        heartbeat_interval_s=args.heartbeat_interval, heartbeat_timeout_s=args.heartbeat_timeout,
        construction_s=args.construction,
    )  # fmt: skip
    work = (args.work or Path(tempfile.mkdtemp(prefix="deadpool-benchmark-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    for rival in names:
        if rival in RIVALS:
            install(rival, work / rival, say)
    runs = Path(tempfile.mkdtemp(prefix="runs-", dir=work))
    report = {"benchmark": "recovery", "machine": machine.describe(), "training": dataclasses.asdict(training)}
    harness = Harness(training, runs, work, args.limit)
    before = json.loads(args.into.read_text()) if args.into and args.into.exists() else {}
    if before and before["training"] != json.loads(json.dumps(report["training"])):
        print(f"{args.into} is of another training: {before['training']}", file=sys.stderr)
        return 2
    harness.know(before.get("losses", {}))
    report |= measure_all(harness, names, args.runs, before)
    if args.into:
        args.into.write_text(json.dumps(report | {"losses": harness.known()}))
    print(json.dumps(report, indent=2))
    return 0


def of_size(params: int | None) -> tuple[str, ...]:
    """Returns train_gpt.py's options for a model with about so many parameters, and for steps that are short in spite of that."""
    if params is None:
        return ()
    width = max(8, round((params / (12 * LAYERS)) ** 0.5 / 8) * 8)
    return ("--layers", str(LAYERS), "--width", str(width), "--batch", "1", "--context", "32")


def measure_all(harness: Harness, names: list[str], runs: int, before: dict[str, Any]) -> dict[str, Any]:
    """Returns the measurements: first each system unbroken, then `runs` rounds in which a failure is injected into each.

    `before`: an earlier report; its runs are among those that are summed up, and what was run unbroken then is not run again.
    """
    unbroken = list(before.get("unbroken", []))
    for name in {family(name): name for name in names if family(name) not in harness.unbroken}.values():
        unbroken.append(harness.run(name, inject=False))
        say(f"{family(name)}, unbroken: {told(unbroken[-1])}")
    results: list[Result] = list(before.get("raw", []))
    names_before = [result["system"] for result in results]
    for turn in range(runs):
        for name in rotated(names, turn):
            results.append(harness.run(name, inject=True))
            say(f"{turn + 1}/{runs} {name}: {told(results[-1])}")
    summaries = {name: summed_up(name, results) for name in dict.fromkeys([*names_before, *names])}
    return {"systems": summaries, "times_longer": ratios(summaries), "unbroken": unbroken, "raw": results}


def told(result: Result) -> str:
    return ", ".join(f"{name} {result[name]}" for name in ("total_s", "step_s", "bitwise", "why") if name in result)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
