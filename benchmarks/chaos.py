"""A training run under a random mixture of failures, at random moments, that must end as the unbroken run, bit for bit.

    python benchmarks/chaos.py --seed 1 --faults 30 [--netns] [--fill-shm] [--json FILE] [-- options of train_gpt.py]

A failure is injected every few steps, and often while the recovery from the one before is still under way. What memory cannot
survive is left out: nodes are lost and copies corrupted one at a time, with a few commits between. Dead nodes are booted again,
frozen ones thawed, cut-off ones healed, full memory freed. The seed also draws how the model is spread, how often it is evaluated
and how many batches a step has, unless that is given after --. Prints a JSON line for each failure, medians for each kind, then
the verdict; exit code 1 unless the runs are the same, and events, metrics and summary account for all failures and seconds.

--fill-shm takes all that is left of /dev/shm: give the run a small one of its own, as in
unshare --mount sh -c 'mount -t tmpfs -o size=256m tmpfs /dev/shm && python -m benchmarks.chaos --fill-shm'
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.account import JobMetrics, unaccounted
from benchmarks.launched import Launched
from benchmarks.systems import SCRIPT
from deadpool.cli import client
from deadpool.host.errors import DeadpoolError
from deadpool.host.ports import why_taken
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus

NNODES, RANKS_PER_NODE, SPARES = 2, 2, 1
RANKS = range(NNODES * RANKS_PER_NODE)
SMALL = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2")
DRAWN = {
    "--parallel": ("zero", "ddp", "fsdp", "hsdp", "tp-fsdp", "pp"),
    "--eval-every": ("3", "7", "1000"),
    "--accumulate": ("1", "2"),
}
HANG_TIMEOUT_S = 6.0
JOB = f"chaos-{os.getpid()}"
RULES = "".join(  # no node is given up, however often its processes are killed
    f'[[rule]]\nname = "{name}"\nclass = "permanent"\nevent = ["exit", "signal", "hang", "late"]\nfailures_on_node = 1000\n'
    for name in ("hangs-again", "too-often")
)
APART_STEPS = 3  # commits between two failures that each take copies of the state away
LIMIT_S = 240.0  # for one failure to happen and pass, before something is wrong: a rank that stops in a recovery takes a minute
START_LIMIT_S = 300.0  # a busy machine imports torch slowly
POLL_S = 0.05
METRICS_PORTS = range(20_000, 30_000)

TAKES_COPIES = {"kill-node": 3, "kill-agent": 2, "freeze-node": 2, "kill-spare": 1, "corrupt-snapshot": 2, "corrupt-replica": 2}
TAKES_NONE = {
    "kill-rank": 6, "raise-rank": 3, "oom-rank": 2, "slow-rank": 1, "hang-rank": 1, "freeze-rank": 1, "thaw-rank": 2,
    "lose-network-briefly": 3, "kill-supervisor": 2,
}  # fmt: skip
UNSEEN = (  # no recovery comes of them
    "slow-rank", "thaw-rank", "corrupt-snapshot", "corrupt-replica", "kill-supervisor", "kill-spare", "fill-shm",
)  # fmt: skip
REPAIRS = {
    "kill-node": "boot-node", "kill-agent": "boot-node", "freeze-node": "thaw-node", "partition-node": "heal-node",
    "fill-shm": "free-shm", "thaw-rank": "thaw-rank",
}  # fmt: skip
NOT_NOTICED = ("fill-shm", "thaw-rank")  # mended immediately, the others once the job has gone on without the node


@dataclass(slots=True, kw_only=True)
class ChaosFailure:
    """One failure. Seconds are from the injection; None where nothing had to be noticed or recovered."""

    kind: str
    target: int
    at_step: int
    during_recovery: bool
    injected_s: float = 0.0
    detected_after_s: float | None = None
    recovered_after_s: float | None = None
    steps_reexecuted: int | None = None


class Running(Protocol):
    """The job's launcher."""

    def alive(self) -> bool: ...


class Chaos:
    """Injects failures into a running job. `random` decides everything that is not the job's own timing."""

    def __init__(
        self,
        seed: int,
        faults: int,
        folder: Path,
        job: Running,
        *,
        netns: bool = False,
        fill_shm: bool = False,
        without: Collection[str] = (),
    ) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.folder = folder
        self.job = job
        self.copies = TAKES_COPIES | ({"partition-node": 3} if netns else {}) | ({"fill-shm": 2} if fill_shm else {})
        self.without = without
        self.injected: list[ChaosFailure] = []
        self.sent: list[str] = []  # kinds, repairs included, to which the supervisor has said yes
        self.broken: list[tuple[str, int, int]] = []  # (repair, target, generation): due once the job runs in a later one
        self.error_step = NO_STEP - 1
        self.safe_step = 0  # from this commit on copies may be taken away again

    def run(self, every_steps: int) -> None:
        for number in range(self.faults):
            step = (number + 1) * every_steps
            hurry = bool(self.injected) and self.random.random() < 0.4
            moment = self.wait(step, hurry=hurry)
            if moment is None:
                return
            self.inject_next(moment)
        while self.broken and self.wait(0, hurry=False) is not None:
            pass

    def wait(self, step: int, *, hurry: bool) -> JobStatus | None:
        """Returns the status at the moment of the next failure; None when the job is over. Repairs what is due meanwhile."""
        deadline_s = time.monotonic() + (LIMIT_S if self.injected else START_LIMIT_S)
        later_s = time.monotonic() + self.random.uniform(0.0, 1.0)
        while self.job.alive():
            status = self.ask()
            if status is not None and status.phase in ("finish", "end"):
                return None
            if status is not None:
                running = status.phase == "run"
                if running and self.broken and status.generation > self.broken[0][2]:
                    self.inject(*self.broken.pop(0)[:2])
                elif (running and status.step >= step) or (hurry and status.phase == "recover" and time.monotonic() > later_s):
                    return status
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"step {step} is not reached; the job is at {status}")
            time.sleep(POLL_S)
        return None

    def inject_next(self, status: JobStatus) -> None:
        kinds = {kind: weight for kind, weight in TAKES_NONE.items() if kind not in self.without}
        if status.step <= self.error_step + 1:  # the same error again in the same step would rightly end the job
            kinds = {kind: weight for kind, weight in kinds.items() if kind not in ("raise-rank", "oom-rank")}
        if status.phase == "run" and status.commit_step >= self.safe_step and not self.broken:
            kinds |= self.copies
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        members = sorted(node.index for node in status.nodes if node.role == "member")
        target = 0
        if kind.endswith("-node") or kind in ("kill-agent", "fill-shm"):
            target = self.random.choice(members)
        elif kind not in ("kill-spare", "kill-supervisor"):
            target = self.random.choice(RANKS)
        if not self.inject("freeze-rank" if kind == "thaw-rank" else kind, target):
            return
        self.injected.append(
            ChaosFailure(kind=kind, target=target, at_step=status.step, during_recovery=status.phase == "recover")
        )
        if kind in ("raise-rank", "oom-rank"):
            self.error_step = status.step
        if kind in self.copies:
            self.safe_step = status.step + APART_STEPS + 1
        if kind in REPAIRS:
            self.broken.append((REPAIRS[kind], target, NO_STEP if kind in NOT_NOTICED else status.generation))
        elif kind == "kill-spare":
            self.broken += [("boot-node", node.index, NO_STEP) for node in status.nodes if node.role == "spare"][:1]

    def ask(self) -> JobStatus | None:
        try:
            with client.connected(self.folder) as supervisor:
                return supervisor.status()
        except (DeadpoolError, OSError):  # it does not listen yet, or is being replaced
            return None

    def inject(self, kind: str, target: int) -> bool:
        try:
            with client.connected(self.folder) as supervisor:
                supervisor.inject(kind, target, NO_STEP)
                self.sent.append(kind)
        except (DeadpoolError, OSError) as error:
            print(f"chaos: {kind} {target}: {error}", file=sys.stderr, flush=True)
            return kind == "kill-supervisor"  # it cannot answer any more
        return True


def measure(injected: Sequence[ChaosFailure], events: Sequence[dict[str, Any]]) -> None:
    """Fills in when each failure was seen and over, from the supervisor's events."""
    waiting = list(injected)
    opened: list[ChaosFailure] = []
    for event in events:
        at_s = datetime.fromisoformat(event["time"]).timestamp()
        match event["event"]:
            case "injection":
                told = event["kind"], event["target"]
                happened = next((each for each in waiting if (each.kind, each.target) == told), None)
                if happened is not None:
                    waiting.remove(happened)
                    happened.injected_s = at_s
                    opened.append(happened)
            case "failure":
                for each in opened:
                    if each.detected_after_s is None and each.kind not in UNSEEN:
                        each.detected_after_s = round(at_s - each.injected_s, 3)
            case "recovered" | "restarted":
                for each in [each for each in opened if each.detected_after_s is not None]:
                    each.recovered_after_s = round(at_s - each.injected_s, 3)
                    each.steps_reexecuted = event["steps_reexecuted"]
                    opened.remove(each)


def summary(injected: Sequence[ChaosFailure]) -> dict[str, dict[str, Any]]:
    """Returns, for each kind, how often it was injected and the medians of what it took."""
    found: dict[str, dict[str, Any]] = {}
    for kind in sorted({each.kind for each in injected}):
        of_kind = [each for each in injected if each.kind == kind]
        found[kind] = {"count": len(of_kind), "during_recovery": sum(each.during_recovery for each in of_kind)}
        for name in ("detected_after_s", "recovered_after_s", "steps_reexecuted"):
            values = [getattr(each, name) for each in of_kind if getattr(each, name) is not None]
            found[kind][name] = round(statistics.median(values), 3) if values else None
    return found


def options(folder: Path) -> list[str]:
    """Returns those of a job that chaos befalls; `folder` gets its failure rules."""
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    patient = ["--hang-timeout", str(HANG_TIMEOUT_S), "--max-recoveries-without-progress", "50"]
    return [*patient, "--failure-rules", str(rules), "--metrics-port", str(_metrics_port())]


def _metrics_port() -> int:
    """Returns a free port that the kernel gives to nobody while the supervisor is away."""
    return next(port for port in random.sample(METRICS_PORTS, len(METRICS_PORTS)) if not why_taken("127.0.0.1", port))


def training(seed: int, given: Sequence[str]) -> list[str]:
    """Returns the options of the training: those that are given, and for the others of DRAWN what the seed draws."""
    draw = random.Random(f"training {seed}")
    drawn = [(option, draw.choice(choices)) for option, choices in DRAWN.items()]  # all, so that one does not change another
    set_already = {word.partition("=")[0] for word in given}
    return [*SMALL, *(word for option in drawn if option[0] not in set_already for word in option), *given]


def launch(folder: Path, runtime: Path, steps: int, given: Sequence[str], *, netns: bool) -> Launched:
    folder.mkdir(parents=True)
    command = [
        sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nnodes", str(NNODES), "--nproc-per-node",
        str(RANKS_PER_NODE), "--spares", str(SPARES), "--job-id", JOB, "--log-dir", str(folder / "logs"),
        "--summary-json", str(folder / "summary.json"), *options(folder), *(["--netns"] if netns else []),
        str(SCRIPT), "--steps", str(steps), "--loss-log", str(folder / "losses"), "--digest", str(folder / "digest"), *given,
    ]  # fmt: skip
    return Launched(command, folder, {"XDG_RUNTIME_DIR": str(runtime)})


def run(
    seed: int, faults: int, every_steps: int, folder: Path, given: Sequence[str], *, netns: bool, fill_shm: bool
) -> dict[str, Any]:
    """Returns the figures of one run under chaos; `same` says whether it ended as the unbroken run did."""
    steps = (faults + 2) * every_steps
    runtime = Path(tempfile.mkdtemp(prefix="dp-", dir="/tmp"))  # short: a socket's path has 107 bytes
    jobs = []
    try:
        jobs.append(launch(folder / "unbroken", runtime, steps, given, netns=False))
        if jobs[-1].process.wait(START_LIMIT_S + steps) != 0:
            raise DeadpoolError(f"the unbroken run failed\n{jobs[-1].tail()}")
        began_s = time.monotonic()
        jobs.append(launch(folder / "broken", runtime, steps, given, netns=netns))
        chaos = Chaos(seed, faults, runtime / "deadpool" / JOB, jobs[-1], netns=netns, fill_shm=fill_shm)
        chaos.run(every_steps)
        exit_code = jobs[-1].process.wait(START_LIMIT_S + steps)
    finally:
        for job in jobs:
            job.end()
        shutil.rmtree(runtime)
    lines = (folder / "broken" / "logs" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    measure(chaos.injected, events)
    wall_s = time.monotonic() - began_s
    metrics = JobMetrics((folder / "broken" / "logs" / "metrics.prom").read_text()) if exit_code == 0 else None
    final_summary = json.loads((folder / "broken" / "summary.json").read_text()) if exit_code == 0 else {}
    names = ("losses", "digest")
    same = exit_code == 0 and all(final(folder / "broken" / name) == final(folder / "unbroken" / name) for name in names)
    return {
        "seed": seed,
        "steps": steps,
        "training": list(given),
        "exit_code": exit_code,
        "same": same,
        "unaccounted": unaccounted(chaos.sent, events, metrics, final_summary, wall_s=wall_s) if metrics is not None else [],
        "spent_s": final_summary.get("spent_s", {}),
        "wall_s": round(wall_s, 1),
        "bad_copies": sum(event["event"] == "bad_copy" for event in events),
        "recoveries": sum(event["event"] in ("recovered", "restarted") for event in events),
        "kinds": summary(chaos.injected),
        "injections": [plain(each) for each in chaos.injected],
        "tail": "" if same else jobs[-1].tail(),
    }


def plain(failure: ChaosFailure) -> dict[str, Any]:
    names = ("kind", "target", "at_step", "during_recovery", "detected_after_s", "recovered_after_s", "steps_reexecuted")
    return {name: getattr(failure, name) for name in names}


def final(path: Path) -> list[str]:
    """Returns a log's different lines: a step that was executed twice must have been logged the same."""
    return sorted(set(path.read_text().splitlines())) if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--every-steps", type=int, default=12, help="steps between failures (default: %(default)s)")
    parser.add_argument("--netns", action="store_true", help="nodes are cut off as well; needs root")
    parser.add_argument("--fill-shm", action="store_true", help="/dev/shm fills up as well; see above")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("options", nargs="*", help="after --: options of train_gpt.py, in place of what the seed draws")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    extra = {"netns": arguments.netns, "fill_shm": arguments.fill_shm}
    given = training(arguments.seed, arguments.options)
    print(f"chaos: seed {arguments.seed} trains with {' '.join(given)}", file=sys.stderr, flush=True)
    figures = run(arguments.seed, arguments.faults, arguments.every_steps, folder, given, **extra)
    for failure in figures["injections"]:
        print(json.dumps(failure))
    verdict = {name: value for name, value in figures.items() if name not in ("injections", "tail")}
    print(json.dumps(verdict))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine.describe(), **figures}, indent=2) + "\n")
    if not figures["same"]:
        sys.exit(f"not the unbroken run; see {folder}\n{figures['tail']}")
    if figures["unaccounted"]:
        sys.exit("\n".join([f"not all is accounted for; see {folder}", *figures["unaccounted"]]))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
