"""The supervisor is lost in every way while ranks train: the training is the unbroken one, bit for bit."""

import json
import os
import signal
from pathlib import Path

import pytest
from launching import Job, Launcher, until
from training import Training, finished, hurry, start

pytestmark = pytest.mark.e2e


def names(job: Job) -> list[str]:
    return [event["event"] for event in job.events()]


@pytest.mark.long
def test_killed_in_a_step_and_in_a_recovery(launcher: Launcher, reference: Training) -> None:
    """Neither is noticed by the ranks; what was under way goes on in the same generation.

    They train on for as long as there is no supervisor, so the training must not be over by then.
    """
    job = start(launcher, "zero", "--inject", "kill-supervisor:0@3", "--inject", "kill-node:1@10", slowly=True)
    until(lambda: names(job).count("generation") == 2, 150, "a recovery has begun")
    os.kill(json.loads((job.job_folder / "endpoint.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: names(job).count("supervisor_started") == 2, 100, "another supervisor is there")
    hurry(job)
    broken = finished(job)
    broken.assert_same_as(reference)
    summary = broken.summary
    assert [(recovery["ranks"], recovery["spare"]) for recovery in summary["recoveries"]] == [([2, 3], "node2")]
    assert (summary["generations"], summary["committed_steps_lost"]) == (2, 0)
    assert names(job).count("supervisor_started") == 2
    print(f"recovered in {summary['recoveries'][0]['total_s']:.2f} s, with a new supervisor in between")


def test_lost_with_its_machine(launcher: Launcher, reference: Training, tmp_path: Path) -> None:
    """The first node hosts the supervisor; the next one takes over, finds out who is gone, and recovers."""
    job = start(launcher, "zero", "--journal", str(tmp_path / "shared"), "--inject", "kill-node:0@8")
    broken = finished(job)
    broken.assert_same_as(reference)
    summary = broken.summary
    assert [(recovery["ranks"], recovery["spare"]) for recovery in summary["recoveries"]] == [([0, 1], "node2")]
    assert summary["committed_steps_lost"] == 0
    assert "supervisor_started" in names(job)
    print(f"recovered in {summary['recoveries'][0]['total_s']:.2f} s")


def test_a_stop_is_heard_where_a_node_hosts_the_supervisor(launcher: Launcher, tmp_path: Path) -> None:
    job = launcher.start("--nnodes", "2", "--journal", str(tmp_path / "shared"), "--no-python", "sleep", "300")
    until(lambda: "started" in names(job), 80, "the job runs")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait().exit_code == 143
    (ended,) = [event for event in job.events() if event["event"] == "job_ended"]
    assert (ended["exit_code"], ended["reason"]) == (143, "SIGTERM received")
