"""Runs one system once, injects one failure, and measures from outside how long the training stood still."""

import dataclasses
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import systems
from benchmarks.launched import Launched
from benchmarks.systems import RANKS, RANKS_PER_NODE, VICTIM_NODE, VICTIM_RANK, Part, Training
from benchmarks.watch import LossWatch, losses, measure_outage, step_times
from deadpool.cli import client
from deadpool.host.errors import DeadpoolError
from deadpool.host.ports import free_port, why_taken
from deadpool.proto.messages.status import JobStatus

DRAIN = "drain"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """One of our cases. `target`: of the injection; None: the node for which the spare is hot. `recoveries`: that follow it."""

    kind: str
    target: int | None
    readiness: str = "warm"
    on_loss: str = "swap"
    recoveries: int = 1


OURS = {
    "deadpool-kill-node": Ours(kind="kill-node", target=VICTIM_NODE),
    "deadpool-kill-rank": Ours(kind="kill-rank", target=VICTIM_RANK),
    "deadpool-drain": Ours(kind=DRAIN, target=VICTIM_NODE),
    "deadpool-kill-node-cold": Ours(kind="kill-node", target=VICTIM_NODE, readiness="cold"),
    "deadpool-kill-node-hot-met": Ours(kind="kill-node", target=None, readiness="hot"),
    "deadpool-kill-node-hot-missed": Ours(kind="kill-node", target=VICTIM_NODE, readiness="hot"),
    "deadpool-kill-node-restart": Ours(kind="kill-node", target=VICTIM_NODE, on_loss="restart"),
    "deadpool-kill-node-exclude": Ours(kind="kill-node", target=VICTIM_NODE, on_loss="exclude", recoveries=2),
}
BY_DEFAULT = ("deadpool-kill-node", "deadpool-kill-rank", "deadpool-drain")
STEADY_STEPS = 20  # before the injection: the median of their times is the step time
STATUS_EVERY_S = 0.3
_HERE, _PORTS = "127.0.0.1", 1 << 16
LEAD_STEPS = 5  # an injection is armed at least this long before it happens
STEPS_AFTER = 20  # that are made, and compared, after a recovery; then the job is stopped
_STOPPED = 143

Result = dict[str, Any]


class Failed(Exception):
    """The system did not do what it was started for; the run counts as failed and the next one follows."""


class Harness:
    """Everything of a run lives in a folder of its own under `runs`, which is kept when the run failed."""

    def __init__(self, training: Training, runs: Path, venvs: Path, limit_s: float) -> None:
        self.training = training
        self.runs = runs
        self.venvs = venvs
        self.limit_s = limit_s
        self.number = 0
        self.unbroken: dict[str, dict[tuple[int, int], str]] = {}  # losses, by family

    def know(self, losses_of: dict[str, dict[str, str]]) -> None:
        """These families were run unbroken before: the losses of each, by "step rank"."""
        for name, by_step in losses_of.items():
            self.unbroken[name] = {
                (int(step), int(rank)): loss for (step, rank), loss in ((k.split(), v) for k, v in by_step.items())
            }

    def known(self) -> dict[str, dict[str, str]]:
        """Returns what `know` takes."""
        return {name: {f"{step} {rank}": loss for (step, rank), loss in found.items()} for name, found in self.unbroken.items()}

    def run(self, system: str, *, inject: bool) -> Result:
        """Returns what was measured. Without an injection its losses become the ones that later runs are compared with."""
        self.number += 1
        folder = self.runs / f"{self.number}-{system}"
        folder.mkdir(parents=True)
        head = {"system": system, "ok": True}
        try:
            result = self.run_ours(system, folder, inject) if system in OURS else self.run_other(system, folder, inject)
        except Failed as error:
            return head | {"ok": False, "why": str(error), "folder": str(folder)}
        shutil.rmtree(folder)
        return head | result

    def run_ours(self, system: str, folder: Path, inject: bool) -> Result:
        runtime = Path(tempfile.mkdtemp(prefix="dp-", dir="/tmp"))  # short: a socket's path has 107 bytes
        watch = LossWatch(folder / "loss.log")
        parts = systems.deadpool_parts(self.training, folder, runtime, "benchmark", OURS[system].readiness, OURS[system].on_loss)
        launched = start(parts, folder)
        step = self.training.injection_step
        try:
            if inject:
                step = self.arm(runtime / "deadpool" / "benchmark", OURS[system], watch, launched[0])
                self.stop_after(runtime / "deadpool" / "benchmark", OURS[system], watch, launched[0])
            watch.until(lambda: False, timeout_s=self.limit_s, alive=launched[0].alive)
        finally:
            end(launched)
            shutil.rmtree(runtime)
        if launched[0].process.returncode not in (0, _STOPPED if inject else 0):
            raise Failed(f"exit code {launched[0].process.returncode}\n{launched[0].tail()}")
        if not inject:
            return self.keep(family(system), watch)
        summary = json.loads((folder / "summary.json").read_text())
        if len(summary["recoveries"]) != OURS[system].recoveries:
            raise Failed(f"{len(summary['recoveries'])} recoveries where {OURS[system].recoveries} were expected")
        if OURS[system].on_loss == "exclude":
            return excluded(summary["recoveries"], watch) | self.compared(system, watch, step)
        recovery = summary["recoveries"][0]
        step = max(step, recovery["resume_step"])  # a drain takes place once the spare is ready, later than it was asked for
        # The kill's own time is in total_s; the log shows it only as silence, which begins with the last line before.
        silent_since_s = max(line.at_s for line in watch.seen if line.step < step)
        outage = measure_outage(watch.seen, ranks=RANKS, step=step, killed_at_s=silent_since_s)
        names = ("total_s", "phases_s", "steps_reexecuted", "survivors_kept_processes")
        return {
            **{name: recovery[name] for name in names},
            "silent_s": outage.silent_s if outage else None,
            "committed_steps_lost": summary["committed_steps_lost"],
            "exposed_stall_s": summary["exposed_stall_s"],
            **self.compared(system, watch, step),
        }

    def arm(self, job: Path, ours: Ours, watch: LossWatch, launched: Launched) -> int:
        """Waits until all spares are ready, as in any job older than a while; returns the step of the injection."""
        self.wait(watch, [launched], (job / "endpoint.json").exists, "the supervisor to listen")
        try:
            with client.connected(job) as supervisor:
                status, asked_s = supervisor.status(), time.monotonic()

                def warm() -> bool:
                    nonlocal status, asked_s
                    if time.monotonic() - asked_s > STATUS_EVERY_S:
                        status, asked_s = supervisor.status(), time.monotonic()
                    return spares_ready(status, ours.readiness)

                self.wait(watch, [launched], warm, "the spares to be ready")
                step = max(self.training.injection_step, status.step + LEAD_STEPS)
                if step > self.training.steps - LEAD_STEPS:
                    raise Failed(
                        f"the spares were ready only in step {status.step} of {self.training.steps}: give it more --steps"
                    )
                target = ours.target if ours.target is not None else covered_node(status)
                if ours.kind == DRAIN:
                    supervisor.drain(str(target), "benchmark")
                else:
                    supervisor.inject(ours.kind, target, step)
        except DeadpoolError as error:
            raise Failed(f"{error}\n{launched.tail()}") from error
        return step

    def stop_after(self, job: Path, ours: Ours, watch: LossWatch, launched: Launched) -> None:
        """Lets the job recover and make some more steps; the rest of the training would tell nothing new."""
        try:
            with client.connected(job) as supervisor:
                status, asked_s = supervisor.status(), time.monotonic()

                def enough() -> bool:
                    nonlocal status, asked_s
                    if time.monotonic() - asked_s > STATUS_EVERY_S:
                        status, asked_s = supervisor.status(), time.monotonic()
                    recovered = len(status.recoveries) >= ours.recoveries
                    return recovered and status.step >= status.recoveries[-1].resume_step + STEPS_AFTER

                self.wait(watch, [launched], enough, "the training to go on")
                supervisor.stop("measured")
        except DeadpoolError as error:
            raise Failed(f"{error}\n{launched.tail()}") from error

    def run_other(self, system: str, folder: Path, inject: bool) -> Result:
        """Kills one worker half a step after it has completed the step before, as DeadPool's injections do."""
        watch = LossWatch(folder / "loss.log")
        launched = start(self.parts(system, folder), folder)
        step = self.training.injection_step
        try:
            if not inject:
                last = self.training.steps - 1
                self.wait(
                    watch, launched, lambda: len({line.rank for line in watch.seen if line.step == last}) == RANKS, "the end"
                )
                return self.keep(family(system), watch)
            self.wait(
                watch, launched, lambda: any(line.step >= step - LEAD_STEPS for line in watch.seen), "the injection to be near"
            )
            variable = "REPLICA_GROUP_ID" if system == "torchft" else "RANK"
            victim = next((found for part in launched if (found := part.worker(variable, str(VICTIM_RANK)))), None)
            if victim is None:
                raise Failed("no process plays the victim's rank")
            self.wait(watch, launched, lambda: (step - 1, VICTIM_RANK) in losses(watch.seen), "the step of the injection")
            time.sleep(self.step_s(watch, step) / 2)
            watch.look()
            victim.kill()
            killed_at_s = time.monotonic()

            def back() -> bool:
                return (
                    len({line.rank for line in watch.seen if line.at_s > killed_at_s and line.step > step + LEAD_STEPS}) == RANKS
                )

            self.wait(watch, launched, back, "all ranks to come back")
        finally:
            end(launched)
        outage = measure_outage(watch.seen, ranks=RANKS, step=step, killed_at_s=killed_at_s)
        if outage is None:
            raise Failed("no line was written before the kill")
        figures = dataclasses.asdict(outage)
        return {"total_s": figures.pop("new_step_s"), **figures, **self.compared(system, watch, step)}

    def parts(self, system: str, folder: Path) -> list[Part]:
        if system == "torchrun":
            return systems.torchrun_parts(self.training, folder)
        make = {"torchft": systems.torchft_parts, "nvrx": systems.nvrx_parts}[system]
        return make(self.training, folder, self.venvs / system, free_ports(RANKS + 1))

    def wait(self, watch: LossWatch, launched: list[Launched], condition: Callable[[], bool], what: str) -> None:
        def alive() -> bool:
            return all(part.alive() for part in launched)

        if not watch.until(condition, timeout_s=self.limit_s, alive=alive):
            ended = next((part for part in launched if not part.alive()), None)
            state = f"ended with exit code {ended.process.returncode}" if ended else f"did not come in {self.limit_s:.0f} s"
            raise Failed(f"waiting for {what}: {state}\n{(ended or launched[-1]).tail()}")

    def step_s(self, watch: LossWatch, before_step: int) -> float:
        times = step_times(watch.seen, rank=VICTIM_RANK, first=before_step - STEADY_STEPS, last=before_step - 1)
        return round(statistics.median(times), 4)

    def keep(self, of_family: str, watch: LossWatch) -> Result:
        self.unbroken[of_family] = losses(watch.seen)
        return {"step_s": self.step_s(watch, self.training.steps)}

    def compared(self, system: str, watch: LossWatch, step: int) -> Result:
        """Returns whether every loss is the unbroken run's of the same system, to the bit (as far as the log goes), and how far
        the mean over the ranks of a step is from the unbroken run's at most.
        """
        expected, found = self.unbroken.get(family(system), {}), losses(watch.seen)
        bitwise = bool(found) and all(expected.get(key) == loss for key, loss in found.items()) if expected else None
        apart = loss_apart(expected, found) if expected else None
        return {"injection_step": step, "step_s": self.step_s(watch, step), "bitwise": bitwise, "loss_apart": apart}


def excluded(recoveries: list[dict[str, Any]], watch: LossWatch) -> Result:
    """Returns what it has cost that ranks were excluded and have returned: two stops, and what they have not computed."""
    without, back = recoveries
    first, last = without["resume_step"], back["resume_step"]
    at_s = {line.step: line.at_s for line in watch.seen if line.rank == 0}
    away_s = at_s[last] - at_s[first] - back["total_s"] if first in at_s and last in at_s else 0.0
    return {
        "total_s": without["total_s"] + back["total_s"],
        "phases_s": {phase: without["phases_s"][phase] + back["phases_s"][phase] for phase in without["phases_s"]},
        "steps_reexecuted": without["steps_reexecuted"] + back["steps_reexecuted"],
        "survivors_kept_processes": without["survivors_kept_processes"] and back["survivors_kept_processes"],
        "silent_s": None,
        "away_s": max(0.0, away_s),
        "away_steps": last - first,
        "slowed_s": max(0.0, away_s) * len(without["excluded"]) / RANKS,
    }


def loss_apart(expected: dict[tuple[int, int], str], found: dict[tuple[int, int], str]) -> float | None:
    """Returns by how much a step's mean over the ranks differs from the unbroken run's at most, where both have all ranks."""

    def means(losses_of: dict[tuple[int, int], str]) -> dict[int, float]:
        steps = {step for step, _ in losses_of}
        whole = [step for step in steps if all((step, rank) in losses_of for rank in range(RANKS))]
        return {step: statistics.fmean(float.fromhex(losses_of[step, rank]) for rank in range(RANKS)) for step in whole}

    mine, unbroken = means(found), means(expected)
    return max((abs(mine[step] - unbroken[step]) for step in mine.keys() & unbroken.keys()), default=None)


def family(system: str) -> str:
    return "deadpool" if system in OURS else system


def spares_ready(status: JobStatus, readiness: str) -> bool:
    """Returns whether every spare has a stand-in for each rank of a node, as ready as it should be, and every member one."""
    spares = {"cold": 0, "warm": RANKS_PER_NODE, "hot": 2 * RANKS_PER_NODE}
    wanted = {"spare": spares[readiness], "member": 1}
    ready = all(node.standins_ready + len(node.hot_ranks) >= wanted.get(node.role, 0) for node in status.nodes)
    hot = readiness != "hot" or any(len(node.hot_ranks) == RANKS_PER_NODE for node in status.nodes)
    return status.hooked and ready and hot


def covered_node(status: JobStatus) -> int:
    """Returns the launch index of the node for whose ranks a spare is hot."""
    (ranks,) = [set(node.hot_ranks) for node in status.nodes if node.hot_ranks]
    return next(node.index for node in status.nodes if ranks & {rank.rank for rank in node.ranks})


def start(parts: list[Part], folder: Path) -> list[Launched]:
    return [Launched(part.command, folder, part.environment, part.name) for part in parts]


def end(launched: list[Launched]) -> None:
    for part in reversed(launched):
        part.end()


def free_ports(count: int) -> int:
    """Returns a port that is free now, as are the next ones: `count` in all."""
    while True:
        port = free_port(_HERE)
        if port + count <= _PORTS and not any(why_taken(_HERE, port + offset) for offset in range(count)):
            return port
