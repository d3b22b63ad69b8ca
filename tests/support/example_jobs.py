"""An example that writes losses and digests, as a job that loses a rank or a node, is drained, or starts again from disk.

For the rows of the table in docs/compatibility.md that are about frameworks.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launching import Job, Launcher, until
from training import Training, finished, hurry, lines, lost_once_on_disk

NODES = ("--standalone", "--nnodes", "2", "--spares", "1", "--summary-json", "summary.json")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as torchrun sets it for several ranks on a node: sums depend on how many share them
KILLS = {"kill-node": "kill-node:1@12", "kill-rank": "kill-rank:1@12"}
_TORCHRUN_S = 150.0


@dataclass(frozen=True, slots=True)
class Example:
    """`script`: its path. It takes --steps, --loss-log and --digest besides `arguments`, and runs on two nodes."""

    script: Path
    arguments: tuple[str, ...]
    steps: int = 24
    ranks_per_node: int = 2

    def words(self) -> tuple[str, ...]:
        return (str(self.script), "--steps", str(self.steps), *self.arguments, "--loss-log", "losses", "--digest", "digests")

    def start(self, launcher: Launcher, *options: str, through: str | None = None) -> Job:
        """`through`: the module beside this one that runs the script."""
        runner = () if through is None else (str(Path(__file__).with_name(through)),)
        ranks = ("--nproc-per-node", str(self.ranks_per_node))
        return launcher.start(*NODES, *ranks, *options, *runner, *self.words(), environment=ONE_THREAD)

    def without_hooks(self, launcher: Launcher) -> Training:
        """Returns what it leaves when its hooks find no job (unhooked.py)."""
        job = self.start(launcher, through="unhooked.py")
        unhooked = finished(job)
        assert "hooked" not in [event["event"] for event in job.events()]
        return unhooked

    def drained(self, launcher: Launcher) -> Training:
        """Returns what a job leaves whose second node is drained under way; the spare builds meanwhile (slowly.py)."""
        job = self.start(launcher, through="slowly.py")
        until(lambda: len(lines(job.folder / "losses")) > 4, 100, "some steps are done")
        asked = job.ask("drain", "node1")
        assert asked.returncode == 0, asked.stderr
        hurry(job)
        return finished(job)

    def assert_starts_again_from_disk(self, launcher: Launcher, checkpoints: Path, reference: Training) -> None:
        """A job ends with a lost node that nothing replaces; a second one goes on from DeadPool's newest checkpoint."""
        disk = ("--checkpoint-dir", str(checkpoints), "--checkpoint-every", "4")
        ended = self.start(launcher, *disk, "--spares", "0", "--on-exhausted", "abort", through="slowly.py")
        lost_once_on_disk(ended)
        again = finished(job := self.start(launcher, *disk))
        assert [int(each["step"]) >= 4 for each in job.events() if each["event"] == "checkpoint_found"] == [True]
        assert lines(ended.folder / "losses") | lines(again.losses) == lines(reference.losses)
        assert lines(again.digests) == lines(reference.digests)

    def under_torchrun(self, folder: Path) -> Training:
        """Returns what it leaves under torchrun."""
        ranks = ("--nproc-per-node", str(2 * self.ranks_per_node))
        run(
            (sys.executable, "-m", "torch.distributed.run", "--standalone", *ranks, *self.words()),
            folder,
            os.environ | ONE_THREAD,
        )
        return Training(folder / "losses", folder / "digests", {})


def run(command: Sequence[str], folder: Path, environment: dict[str, str], timeout_s: float = _TORCHRUN_S) -> str:
    """Returns the output of a command that must end well."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_one_recovery(training: Training) -> None:
    (recovery,) = training.summary["recoveries"]
    assert recovery["survivors_kept_processes"]
    assert recovery["steps_reexecuted"] <= 2
    assert training.summary["committed_steps_lost"] == 0
