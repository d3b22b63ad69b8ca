"""A real Slurm cluster of five nodes on this machine (slurm-up.sh), and jobs on it as a person submits them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from launching import until
from training import ROOT, SMALL, STEPS, Training
from warm_start import TEST_TAG

HERE = ROOT / "tests" / "slurm"
DEPLOY = ROOT / "deploy" / "slurm"
EXAMPLE = ROOT / "examples" / "train_gpt.py"
TRAINING = (str(EXAMPLE), "--steps", str(STEPS), "--loss-log", "losses", "--digest", "digests", *SMALL)
SLOW_TRAINING = (str(ROOT / "tests" / "support" / "slowly.py"), *TRAINING)  # until there is a file `hurry` in the job's folder
_UP_S = 280
_COMMAND_S = 120
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL")


class NoClusterError(Exception):
    """Why there cannot be one here."""


class Cluster:
    """`run` is on its login host. Its nodes are n1 to n5; they share this machine's files, but /dev/shm."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.down: set[str] = set()  # nodes that a test has killed

    def run(self, *command: str, cwd: Path | None = None, check: bool = True) -> str:
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NPROC_PER_NODE": "2",
            "XDG_RUNTIME_DIR": str(self._folder / "runtime"),
        }
        done = subprocess.run(
            [str(self._folder / "slurm-exec"), *command],
            cwd=cwd, env=environment, capture_output=True, text=True, timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def node(self, action: str, name: str, *command: str) -> str:
        """Breaks and mends a node: see slurm-up.sh for the actions."""
        if action in ("kill", "crash"):
            self.down.add(name)
        done = subprocess.run(
            [str(self._folder / "slurm-node"), action, name, *command],
            env={key: value for key, value in os.environ.items() if key != TEST_TAG},  # a node that is booted outlives the test
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{action} {name}: {done.stdout}{done.stderr}"
        return done.stdout

    def mend(self) -> None:
        """All nodes are idle again, whatever a test has done to them."""
        for name in sorted(self.down):
            self.node("boot", name)
        self.down.clear()

        def idle() -> bool:
            states = self.run("sinfo", "--noheader", "--Node", "--format=%N %t").split()
            away = [name for name, state in zip(states[::2], states[1::2], strict=True) if state != "idle"]
            for name in away:
                self.run("scontrol", "update", f"node={name}", "state=resume", check=False)
            return not away

        until(idle, 150, "all nodes are idle")

    def submit(self, folder: Path, script: Path, *arguments: str, options: tuple[str, ...] = ()) -> "SlurmJob":
        """Runs sbatch in that folder; `options` are sbatch's."""
        folder.mkdir(exist_ok=True)
        said = self.run("sbatch", "--parsable", *options, str(script), *arguments, cwd=folder)
        name = next((Path(each).stem for each in arguments if each.endswith(".py")), "")
        return SlurmJob(self, said.strip(), folder, name)

    def train(
        self, folder: Path, *launch: str, nodes: int = 3, options: tuple[str, ...] = (), script: tuple[str, ...] = TRAINING
    ) -> "SlurmJob":
        """Submits a training with deploy/slurm/train.sbatch to the first nodes: two train, a third is the spare."""
        arguments = ("--summary-json", "summary.json", *launch, *script)
        where = (f"--nodes={nodes}", f"--nodelist=n[1-{nodes}]", "--time=10")
        return self.submit(folder, DEPLOY / "train.sbatch", *arguments, options=(*where, *options))

    def log(self) -> str:
        """Returns the end of what Slurm's controller has written."""
        return "\n".join((self._folder / "log" / "slurmctld.log").read_text(errors="replace").splitlines()[-40:])


class SlurmJob:
    """`name`: of the script."""

    def __init__(self, cluster: Cluster, job_id: str, folder: Path, name: str = "") -> None:
        self.cluster, self.job_id, self.folder, self.name = cluster, job_id, folder, name

    @property
    def out(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"*-{self.job_id}.out")))

    @property
    def log_dir(self) -> Path:
        return self.folder / "logs" / f"{self.name}-{self.job_id}"

    @property
    def shared(self) -> Path:
        """The folder that the job's machines share, with train.sbatch's --journal."""
        return self.folder / "journal" / f"{self.name}-{self.job_id}"

    def lines(self) -> list[str]:
        path = self.folder / "losses"
        return path.read_text().splitlines() if path.exists() else []

    def events(self) -> list[dict[str, Any]]:
        path = self.log_dir / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def names(self) -> list[str]:
        return [event["event"] for event in self.events()]

    def until_event(self, event: str, timeout_s: float = 120, times: int = 1) -> None:
        self.until(lambda: self.names().count(event) >= times, timeout_s, f"{times} x {event}")

    def until_steps(self, steps: int, ranks: int = 4, timeout_s: float = 150) -> None:
        self.until(lambda: len(self.lines()) >= steps * ranks, timeout_s, f"{steps} steps")

    def field(self, name: str) -> str:
        found = re.search(rf"\b{name}=(\S+)", self.cluster.run("scontrol", "--oneliner", "show", "job", self.job_id))
        return found[1] if found else ""

    def end(self, timeout_s: float = 150) -> tuple[str, str]:
        """Returns (state, exit code as Slurm writes it) once the job is over, for Slurm as well."""
        self.until(lambda: self.field("JobState") in _OVER, timeout_s, "the job is over")
        return self.field("JobState"), self.field("ExitCode")

    def run_now(self) -> None:
        """Slurm lets a requeued job wait for two minutes, and says so again when it has cleared up after the run before.

        Before the second in which that was ended is over, its nodes would refuse the next run ("Job credential revoked").
        """
        requeued = datetime.fromisoformat(self.field("SubmitTime"))

        def runs() -> bool:
            if self.field("JobState") == "PENDING":
                if datetime.now() - requeued > timedelta(seconds=2):  # it may run by now, when nothing can be set any more
                    self.cluster.run("scontrol", "update", f"job={self.job_id}", "StartTime=now", check=False)
                return False
            return True

        self.until(runs, 60, "it runs again")

    def until_said(self, words: str, timeout_s: float = 120) -> None:
        self.until(lambda: words in self.out, timeout_s, f"its output has {words!r}")

    def finished(self) -> Training:
        state, exit_code = self.end()
        assert (state, exit_code) == ("COMPLETED", "0:0"), self.out
        summary = json.loads((self.folder / "summary.json").read_text())
        return Training(self.folder / "losses", self.folder / "digests", summary)

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        try:
            until(condition, timeout_s, what)
        except AssertionError as error:
            known = self.cluster.run("scontrol", "--oneliner", "show", "job", self.job_id)
            raise AssertionError(f"{error}\n{self.out}\n{self.names()}\n{known}\n{self.cluster.log()}") from error


def left_on(cluster: Cluster, nodes: tuple[str, ...] = ("n1", "n2", "n3", "n4", "n5")) -> dict[str, list[str]]:
    """Returns what of ours lies in /dev/shm of the nodes that live."""
    found = {node: cluster.node("exec", node, "ls", "/dev/shm").split() for node in nodes if node not in cluster.down}
    return {node: files for node, files in found.items() if files}


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """Yields a cluster of five nodes; NoClusterError says why there cannot be one."""
    if os.geteuid() != 0:
        raise NoClusterError("making a Slurm cluster in namespaces needs root")
    environment = {"KILL_WAIT": "60", "LIFETIME": "1800", "GPUS": "2"} | {
        name: value for name, value in os.environ.items() if name != TEST_TAG and not name.startswith("SLURM")
    }
    up = subprocess.run(
        [str(HERE / "slurm-up.sh"), str(folder), "5"],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_UP_S, check=False,
    )  # fmt: skip
    try:
        if up.returncode != 0:
            raise NoClusterError(f"no Slurm cluster can be made here: {(up.stderr.strip() or '?').splitlines()[-1]}")
        (folder / "runtime").mkdir(mode=0o700)
        yield Cluster(folder)
    finally:
        subprocess.run([str(HERE / "slurm-down.sh"), str(folder)], capture_output=True, timeout=_COMMAND_S, check=False)
