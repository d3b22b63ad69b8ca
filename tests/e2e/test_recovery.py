"""The main job: ranks and nodes die in the middle of a step, and the training is the unbroken one, bit for bit."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from launching import Job, Launcher, launching, until

pytestmark = pytest.mark.e2e

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
            verdict = subprocess.run(
                [sys.executable, str(ROOT / "examples" / "compare_runs.py"), str(mine), str(theirs)],
                capture_output=True,
                text=True,
                check=False,
            )
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


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Training]:
    return {}


@pytest.fixture
def reference(
    unbroken: dict[str, Training], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Training:
    parallel: str = request.node.callspec.params["parallel"]
    if parallel not in unbroken:
        with launching(tmp_path_factory.mktemp("unbroken")) as launcher:
            unbroken[parallel] = finished(start(launcher, parallel))
    return unbroken[parallel]


KILL_BOTH = ("--inject", "kill-node:0@8", "--inject", "kill-rank:1@16")


@pytest.mark.parametrize(
    ("parallel", "inject", "classes"),
    [
        ("zero", ("--inject", "kill-node:1@8"), ["permanent"]),
        ("zero", ("--inject", "kill-rank:3@8"), ["transient"]),
        ("zero", ("--inject", "hang-rank:2@8", "--hang-timeout", "5"), ["transient"]),
        ("zero", KILL_BOTH, ["permanent", "transient"]),
        ("fsdp", KILL_BOTH, ["permanent", "transient"]),
    ],
    ids=["zero-node", "zero-rank", "zero-hang", "zero-both", "fsdp-both"],
)
def test_the_training_is_the_unbroken_one(
    launcher: Launcher, reference: Training, parallel: str, inject: tuple[str, ...], classes: list[str]
) -> None:
    broken = finished(start(launcher, parallel, *inject))
    broken.assert_same_as(reference)
    recoveries = broken.summary["recoveries"]
    assert [recovery["class"] for recovery in recoveries] == classes
    assert broken.summary["committed_steps_lost"] == 0
    assert all(recovery["survivors_kept_processes"] for recovery in recoveries)
    assert all(recovery["steps_reexecuted"] <= 2 for recovery in recoveries)  # 1 unless the strike came before the commit


def test_a_failure_asked_for_while_the_job_runs(launcher: Launcher) -> None:
    """Status, inject, events and stop as a person would use them, on a job that would run for long."""
    job = start(launcher, "zero", steps=100_000)
    until(lambda: len(lines(job)) > 20, 60, "some steps are done")
    status = job.status()
    assert status["phase"] == "run"
    assert {node["role"] for node in status["nodes"]} == {"member", "spare"}
    assert job.ask("inject", "kill-rank", "2").returncode == 0
    until(lambda: "recovered" in [event["event"] for event in job.events()], 60, "the rank is back")
    names = [event["event"] for event in job.events()]
    assert names.index("injection") < names.index("recovered"), names
    assert job.ask("stop").returncode == 0
    assert job.wait().exit_code == 143
    assert [recovery["ranks"] for recovery in json.loads((job.folder / "summary.json").read_text())["recoveries"]] == [[2]]


@pytest.mark.parametrize("parallel", ["zero"])
def test_a_frozen_node_is_replaced_and_comes_back_as_a_spare(launcher: Launcher, reference: Training, parallel: str) -> None:
    """Frozen: no connection breaks, only silence tells. Thawed: its ranks are of a generation that is over."""
    frozen = ("--heartbeat-timeout", "1.5", "--inject", "freeze-node:1@8", "--inject", "kill-node:0@20")
    job = start(launcher, parallel, *frozen)
    until(lambda: "waiting_for_node" in [event["event"] for event in job.events()], 60, "both are lost, the one spare is used")
    assert job.ask("inject", "thaw-node", "1").returncode == 0
    broken = finished(job)
    broken.assert_same_as(reference)
    first, second = broken.summary["recoveries"]
    assert "silent" in first["cause"]
    assert (first["spare"], second["spare"]) == ("node2", "node1")
    assert broken.summary["committed_steps_lost"] == 0
    print(f"frozen node replaced in {first['total_s']:.2f} s: {first['phases_s']}")


def lines(job: Job) -> list[str]:
    path = job.folder / "losses"
    return path.read_text().splitlines() if path.exists() else []
