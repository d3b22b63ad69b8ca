"""The supervisor is lost in every way while ranks train: the training is the unbroken one, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import Job, Launcher, launching, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]  # its first test makes the unbroken run as well

ROOT = Path(__file__).parents[2]
SMALL = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2", "--eval-every", "12")


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", "--summary-json", "summary.json")
    training = ("--parallel", "zero", "--steps", "30", "--loss-log", "losses", "--digest", "digests", *SMALL)
    return launcher.start(*nodes, *options, str(ROOT / "examples" / "train_gpt.py"), *training)


def finished(job: Job) -> dict[str, Any]:
    outcome = job.wait(150)
    assert outcome.exit_code == 0, f"{outcome.out}\n{outcome.err}"
    summary: dict[str, Any] = json.loads((job.folder / "summary.json").read_text())
    return summary


def assert_same(job: Job, other: Job) -> None:
    compare = str(ROOT / "examples" / "compare_runs.py")
    for name in ("losses", "digests"):
        command = [sys.executable, compare, str(job.folder / name), str(other.folder / name)]
        verdict = subprocess.run(command, capture_output=True, text=True, check=False)
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def names(job: Job) -> list[str]:
    return [event["event"] for event in job.events()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Job:
    with launching(tmp_path_factory.mktemp("unbroken")) as launcher:
        job = start(launcher)
        finished(job)
        return job


@pytest.mark.long
def test_killed_in_a_step_and_in_a_recovery(launcher: Launcher, unbroken: Job) -> None:
    """Neither is noticed by the ranks; what was under way goes on in the same generation."""
    job = start(launcher, "--inject", "kill-supervisor:0@6", "--inject", "kill-node:1@14")
    until(lambda: names(job).count("generation") == 2, 150, "a recovery has begun")
    os.kill(json.loads((job.job_folder / "endpoint.json").read_text())["pid"], signal.SIGKILL)
    summary = finished(job)
    assert_same(job, unbroken)
    assert [(recovery["ranks"], recovery["spare"]) for recovery in summary["recoveries"]] == [([2, 3], "node2")]
    assert (summary["generations"], summary["committed_steps_lost"]) == (2, 0)
    assert names(job).count("supervisor_started") == 2
    print(f"recovered in {summary['recoveries'][0]['total_s']:.2f} s, with a new supervisor in between")


def test_lost_with_its_machine(launcher: Launcher, unbroken: Job, tmp_path: Path) -> None:
    """The first node hosts the supervisor; the next one takes over, finds out who is gone, and recovers."""
    job = start(launcher, "--journal", str(tmp_path / "shared"), "--inject", "kill-node:0@8")
    summary = finished(job)
    assert_same(job, unbroken)
    assert [(recovery["ranks"], recovery["spare"]) for recovery in summary["recoveries"]] == [([0, 1], "node2")]
    assert summary["committed_steps_lost"] == 0
    assert "supervisor_started" in names(job)
    print(f"recovered in {summary['recoveries'][0]['total_s']:.2f} s")


def test_a_stop_is_heard_where_a_node_hosts_the_supervisor(launcher: Launcher, tmp_path: Path) -> None:
    job = launcher.start("--nnodes", "2", "--journal", str(tmp_path / "shared"), "--no-python", "sleep", "300")
    until(lambda: "started" in names(job), 80, "the job runs")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(60).exit_code == 143
    (ended,) = [event for event in job.events() if event["event"] == "job_ended"]
    assert (ended["exit_code"], ended["reason"]) == (143, "SIGTERM received")
