"""The example's training as e2e tests run it: how it is started, what it leaves, and whether that is the same to the bit."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import Job, Launcher

ROOT = Path(__file__).parents[2]
STEPS = 36
SMALL = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2", "--eval-every", "12")


@dataclass(frozen=True, slots=True)
class Training:
    """What one run left: a file with every rank's loss at every step, one with every rank's digest, the summary."""

    losses: Path
    digests: Path
    summary: dict[str, Any]

    def assert_same_as(self, other: "Training") -> None:
        """Every rank, every step, to the bit; a step that was logged twice must have been logged the same."""
        for mine, theirs in ((self.losses, other.losses), (self.digests, other.digests)):
            assert_same(mine, theirs)


def assert_same(mine: Path, theirs: Path) -> None:
    """The two files hold the same values for every rank and step."""
    compare = [sys.executable, str(ROOT / "examples" / "compare_runs.py"), str(mine), str(theirs)]
    verdict = subprocess.run(compare, capture_output=True, text=True, check=False)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def start(launcher: Launcher, parallel: str, *options: str, steps: int = STEPS) -> Job:
    script = str(ROOT / "examples" / "train_gpt.py")
    return launcher.start(
        *("--standalone", "--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", "--summary-json", "summary.json", *options),
        *(script, "--parallel", parallel, "--steps", str(steps), "--loss-log", "losses", "--digest", "digests", *SMALL),
    )


def finished(job: Job) -> Training:
    outcome = job.wait()
    assert outcome.exit_code == 0, f"{outcome.out}\n{outcome.err}"
    return Training(job.folder / "losses", job.folder / "digests", json.loads((job.folder / "summary.json").read_text()))


def hurry(job: Job) -> None:
    """The steps of growing.py take no longer than they need from now on."""
    (job.folder / "hurry").touch()
