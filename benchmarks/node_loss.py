"""How long does an unmodified training stand still when a node dies? deadpool-launch beside torchrun, in the same run.

    python benchmarks/node_loss.py --runs 5 > node_loss.json

All train benchmarks/plain_training.py, which never calls deadpool.join() and saves a checkpoint every 10 steps, on two nodes of
two ranks. Five steps after a checkpoint one node is killed, agent and ranks at the same time, never the one that hosts torchrun's
store. The figure is the time from the kill until every rank of the job has completed a step that was new. Systems take turns.
Progress goes to stderr, JSON to stdout.

deadpool-spare           --nnodes 2 --spares 1: the spare takes the dead node's ranks
torchrun-spare           --nnodes 2 and a third agent, started early, which waits in the rendezvous: its best case. Its keep-alive
                         settings equal DeadPool's heartbeat settings, and each attempt has a store of its own (without that it
                         does not recover)
torchrun-spare-defaults  the same with the keep-alive settings that it comes with
deadpool-fewer           --nnodes 1:2 and no spare: the job goes on with two ranks
torchrun-fewer           the same; it waits 1 s for more nodes to come, not the 30 s that it comes with: its best case
"""

import argparse
import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.harness import LEAD_STEPS, Failed, Harness, Result, end, free_ports, start
from benchmarks.launched import Launched
from benchmarks.recovery import say, told
from benchmarks.stats import rotated, summarize
from benchmarks.systems import CHECKPOINT_EVERY, RANKS, RANKS_PER_NODE, ROOT, VICTIM_NODE, VICTIM_RANK, Part, Training
from benchmarks.watch import LossWatch, Seen, measure_outage

SCRIPT = ROOT / "benchmarks" / "plain_training.py"
JOB_ID = "benchmark"
FIGURES = ("total_s", "any_step_s", "first_line_s", "steps_reexecuted", "step_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`spare`: a third node waits, else the job goes on with one. `rendezvous`: torchrun's settings that differ from its own."""

    ours: bool
    spare: bool
    rendezvous: Mapping[str, int] = field(default_factory=dict)

    @property
    def nnodes(self) -> str:
        return "2" if self.spare else "1:2"

    @property
    def ranks_after(self) -> int:
        return RANKS if self.spare else RANKS_PER_NODE


def systems(heartbeat_interval_s: float, heartbeat_timeout_s: float) -> dict[str, System]:
    """Returns all systems by name; torchrun's keep-alive settings are whole numbers."""
    interval_s = max(1, round(heartbeat_interval_s))
    equal = {"keep_alive_interval": interval_s, "keep_alive_max_attempt": max(1, round(heartbeat_timeout_s / interval_s))}
    return {
        "deadpool-spare": System(ours=True, spare=True),
        "torchrun-spare": System(ours=False, spare=True, rendezvous=equal),
        "torchrun-spare-defaults": System(ours=False, spare=True),
        "deadpool-fewer": System(ours=True, spare=False),
        "torchrun-fewer": System(ours=False, spare=False, rendezvous=equal | {"last_call_timeout": 1}),
    }


def script_of(training: Training, folder: Path) -> list[str]:
    return [str(SCRIPT), str(folder), "--steps", str(training.steps), "--checkpoint-every", str(CHECKPOINT_EVERY)]


def deadpool_part(system: System, training: Training, folder: Path, runtime: Path) -> Part:
    command = [
        sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nnodes", system.nnodes,
        "--nproc-per-node", str(RANKS_PER_NODE), "--spares", str(int(system.spare)), "--max-restarts", "3",
        "--heartbeat-interval", f"{training.heartbeat_interval_s:g}", "--heartbeat-timeout", f"{training.heartbeat_timeout_s:g}",
        "--job-id", JOB_ID, "--log-dir", str(folder / "logs"), *script_of(training, folder),
    ]  # fmt: skip
    return Part(name="main", command=tuple(command), environment={"XDG_RUNTIME_DIR": str(runtime)})


def torchrun_part(system: System, training: Training, folder: Path, port: int, node: int) -> Part:
    """Returns one agent; node 0 hosts the store."""
    rendezvous = {"is_host": int(node == 0), **system.rendezvous}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", system.nnodes, "--nproc-per-node", str(RANKS_PER_NODE),
        "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", JOB_ID,
        "--rdzv-conf", ",".join(f"{name}={value}" for name, value in rendezvous.items()), "--local-addr", "127.0.0.1",
        "--log-dir", str(folder / "logs"), *script_of(training, folder),
    ]  # fmt: skip
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return Part(name=f"node{node}", command=tuple(command), environment=environment)


class NodeLoss(Harness):
    """Kills one node of a training that nobody has modified."""

    def run_other(self, system: str, folder: Path, inject: bool) -> Result:
        found = systems(self.training.heartbeat_interval_s, self.training.heartbeat_timeout_s)[system]
        runtime = Path(tempfile.mkdtemp(prefix="dp-", dir="/tmp"))  # short: a socket's path has 107 bytes
        watch, port, launched = LossWatch(folder / "loss.log"), free_ports(1), list[Launched]()
        try:
            if found.ours:
                launched += start([deadpool_part(found, self.training, folder, runtime)], folder)
            else:
                launched += start([torchrun_part(found, self.training, folder, port, node) for node in range(2)], folder)
                if found.spare:  # later than the first two, else it might be one of them
                    self.wait(watch, launched, lambda: bool(watch.seen), "the first step")
                    launched += start([torchrun_part(found, self.training, folder, port, 2)], folder)
            return self.measure(found, watch, launched, folder)
        finally:
            end(launched)
            shutil.rmtree(runtime)

    def measure(self, system: System, watch: LossWatch, launched: list[Launched], folder: Path) -> Result:
        """Kills the node half a step after all ranks have completed one: while they sleep, so that none completes another."""
        last = self.training.injection_step - 1

        def completed(step: int) -> bool:
            return len({line.rank for line in watch.seen if line.step == step}) == RANKS

        self.wait(watch, launched, lambda: completed(last - LEAD_STEPS), "the injection to be near")
        if system.ours:
            victim = int((folder / "pids" / str(VICTIM_RANK)).read_text())
            node, survivors = node_of(victim, launched[0].process.pid), launched
        else:
            node = psutil.Process(launched[VICTIM_NODE].process.pid)
            survivors = [part for number, part in enumerate(launched) if number != VICTIM_NODE]
        doomed = [node, *node.children(recursive=True)]
        self.wait(watch, launched, lambda: completed(last), "the step of the injection")
        step_s = self.step_s(watch, last)
        time.sleep(step_s / 2)
        watch.look()
        killed_at_s = time.monotonic()
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        newest = max(line.step for line in watch.seen)

        def reached(step: int) -> bool:
            lines = restarted(watch.seen, newest=newest, killed_at_s=killed_at_s)
            return len({line.rank for line in lines if line.step >= step}) >= system.ranks_after

        self.wait(watch, survivors, lambda: reached(newest + LEAD_STEPS), "all ranks to come back")
        lines = restarted(watch.seen, newest=newest, killed_at_s=killed_at_s)
        outage = measure_outage(
            [line for line in watch.seen if line.at_s <= killed_at_s] + lines,
            ranks=system.ranks_after, step=newest + 1, killed_at_s=killed_at_s,
        )  # fmt: skip
        if outage is None:
            raise Failed("no line was written before the kill")
        figures = dataclasses.asdict(outage)
        return {
            "total_s": figures.pop("new_step_s"),
            **figures,
            "killed_processes": len(doomed),
            "injection_step": newest + 1,
            "step_s": step_s,
        }


def node_of(rank_pid: int, launcher_pid: int) -> psutil.Process:
    """Returns the agent of that rank: the launcher's child from which its process descends."""
    process = psutil.Process(rank_pid)
    for each in [process, *process.parents()]:
        if each.ppid() == launcher_pid:
            return each
    raise Failed(f"rank process {rank_pid} does not descend from the launcher")


def restarted(seen: list[Seen], *, newest: int, killed_at_s: float) -> list[Seen]:
    """Returns the lines of the ranks that were started again, which begin with a step that the job had completed before.

    What comes before that is a survivor's, which has ended the step that it was in when the node died.
    """
    back: set[int] = set()
    lines = []
    for line in seen:
        if line.at_s > killed_at_s and (line.rank in back or line.step <= newest):
            back.add(line.rank)
            lines.append(line)
    return lines


def summed_up(results: list[Result]) -> dict[str, Any]:
    """Returns medians and spread of one system's runs; failed runs are counted, not measured."""
    good = [result for result in results if result["ok"]]
    spread = {name: summarize([result[name] for result in good]) for name in FIGURES}
    return {"runs": len(results), "failed": len(results) - len(good), **spread}


def times_longer(results: list[Result]) -> dict[str, dict[str, float | int | None]]:
    """Returns how many times longer torchrun stands still than DeadPool in the same turn and in the same case."""
    total_s = {(result["system"], result["turn"]): result["total_s"] for result in results if result["ok"]}
    pairs: dict[str, list[float]] = {}
    for (name, turn), other_s in total_s.items():
        ours = "deadpool-fewer" if "fewer" in name else "deadpool-spare"
        if name != ours and (ours, turn) in total_s:
            pairs.setdefault(f"{name} / {ours}", []).append(other_s / total_s[ours, turn])
    return {pair: summarize(ratios) for pair, ratios in pairs.items()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each system")
    parser.add_argument("--only", action="append", choices=list(systems(1.0, 3.0)), help="only this system (repeatable)")
    parser.add_argument("--work", type=Path, help="folder for runs; default: a temporary one")
    parser.add_argument("--injection-step", type=int, default=85, help="late enough for torchrun's third agent to be there")
    parser.add_argument("--heartbeat-interval", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--heartbeat-timeout", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="a run that waits longer has failed")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    training = Training(
        steps=10 * args.injection_step, injection_step=args.injection_step, options=(),
        heartbeat_interval_s=args.heartbeat_interval, heartbeat_timeout_s=args.heartbeat_timeout,
    )  # fmt: skip
    known = systems(training.heartbeat_interval_s, training.heartbeat_timeout_s)
    names = [name for name in known if name in (args.only or known)]
    work = (args.work or Path(tempfile.mkdtemp(prefix="deadpool-benchmark-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    harness = NodeLoss(training, Path(tempfile.mkdtemp(prefix="runs-", dir=work)), work, args.limit)
    report: dict[str, Any] = {"benchmark": "node_loss", "machine": machine.describe(), "training": dataclasses.asdict(training)}
    results: list[Result] = []
    for turn in range(args.runs):
        for name in rotated(names, turn):
            results.append(harness.run(name, inject=True) | {"turn": turn})
            say(f"{turn + 1}/{args.runs} {name}: {told(results[-1])}")
    report |= {
        "systems": {name: summed_up([result for result in results if result["system"] == name]) for name in names},
        "settings": {name: dataclasses.asdict(known[name]) for name in names},
        "times_longer": times_longer(results),
        "raw": results,
    }
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
