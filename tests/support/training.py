"""The example's training as e2e tests run it: how it is started, what it leaves, and whether that is the same to the bit."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import Job, Launcher, until

ROOT = Path(__file__).parents[2]
STEPS = 36
EVAL_EVERY = 12
SMALL = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2", "--eval-every", str(EVAL_EVERY))
SMALL_MEGATRON = ("--layers", "1", "--width", "32", "--context", "32", "--eval-every", str(EVAL_EVERY))
ON_8_RANKS = ("3d", "megatron")
SLOWLY = str(ROOT / "tests" / "support" / "slowly.py")


@dataclass(frozen=True, slots=True)
class Training:
    """What one run left: a file with every rank's loss at every step, one with every rank's digest, the summary."""

    losses: Path
    digests: Path
    summary: dict[str, Any]

    @property
    def ranks(self) -> int:
        return len(lines(self.digests))

    def assert_same_as(self, other: "Training") -> None:
        """Every rank, every step, to the bit; a step that was logged twice must have been logged the same."""
        for mine, theirs in ((self.losses, other.losses), (self.digests, other.digests)):
            assert_same(mine, theirs)


def assert_same(mine: Path, theirs: Path) -> None:
    """The two files hold the same values for every rank and step."""
    compare = [sys.executable, str(ROOT / "examples" / "compare_runs.py"), str(mine), str(theirs)]
    verdict = subprocess.run(compare, capture_output=True, text=True, check=False)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def script(way: str, *, steps: int = STEPS) -> tuple[str, ...]:
    """Returns the command line of examples/train_gpt.py spread that way, or of examples/train_megatron_style.py ("megatron")."""
    name, *own = (
        ("train_megatron_style.py", *SMALL_MEGATRON) if way == "megatron" else ("train_gpt.py", "--parallel", way, *SMALL)
    )
    return (str(ROOT / "examples" / name), "--steps", str(steps), "--loss-log", "losses", "--digest", "digests", *own)


def nodes(way: str) -> tuple[str, ...]:
    return ("--nnodes", "2", "--nproc-per-node", "4" if way in ON_8_RANKS else "2")


def start(
    launcher: Launcher, way: str, *options: str, steps: int = STEPS, training: Sequence[str] = (), slowly: bool = False
) -> Job:
    """Starts that training on two nodes and a spare. `options` are the launcher's, `training` the script's.

    `slowly`: each step takes a second more (slowly.py), until hurry().
    """
    ours = ("--standalone", *nodes(way), "--spares", "1", "--summary-json", "summary.json", *options)
    return launcher.start(*ours, *((SLOWLY,) if slowly else ()), *script(way, steps=steps), *training)


def finished(job: Job) -> Training:
    outcome = job.wait()
    assert outcome.exit_code == 0, f"{outcome.out}\n{outcome.err}"
    return Training(job.folder / "losses", job.folder / "digests", json.loads((job.folder / "summary.json").read_text()))


def lost_once_on_disk(job: Job) -> None:
    """The job loses a node as soon as it has a persistent checkpoint, and ends by it. Its steps should leave time for that."""
    until(lambda: "checkpoint" in [event["event"] for event in job.events()], 100, "a checkpoint is whole")
    assert job.ask("inject", "kill-node", "1").returncode == 0
    assert job.wait().exit_code == 1


def lines(path: Path) -> set[str]:
    """Returns the different lines of a file: what was written twice must have been written the same."""
    return set(path.read_text().splitlines()) if path.exists() else set()


def hurry(job: Job) -> None:
    """The steps of growing.py, or of what slowly.py runs, take no longer than they need from now on."""
    (job.folder / "hurry").touch()
