"""Protection that cannot go on: training does, the job says since when it is unprotected and why, and when that is over."""

import os
from pathlib import Path

import pytest
from launching import Job, Launcher, until
from training import finished, hurry

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "growing.py")
STEPS, GROWS_AT, GROWS_BY = 300, 12, 1 << 16  # a slot needs 2 MiB more then: each rank has two of its own, and two at its holder
SHM_BYTES = 96 << 20


def start(launcher: Launcher, *options: str) -> Job:
    growing = ("--steps", str(STEPS), "--grows-at", str(GROWS_AT), "--grows-by", str(GROWS_BY), "--slower-from", "50")
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, SCRIPT, *growing, shm_bytes=SHM_BYTES)


@pytest.mark.skipif(os.geteuid() != 0, reason="a /dev/shm of its own needs root")
@pytest.mark.long
def test_a_full_shm_stops_protection_not_training(launcher: Launcher) -> None:
    """The state outgrows its slots while /dev/shm is full. A rank that is killed meanwhile comes back at the newest commit.

    When there is room again the job is protected, and a node that is killed then costs what it always does.
    """
    calm = start(launcher)
    hurry(calm)
    reference = finished(calm)
    job = start(launcher, "--inject", "fill-shm:0@8", "--inject", f"kill-rank:1@{GROWS_AT + 1}")
    until(lambda: names(job).count("recovered") == 1, 60, "the rank is back")
    assert job.ask("inject", "free-shm", "0").returncode == 0
    until(lambda: "protected_again" in after_last(names(job), "unprotected"), 60, "there is room again")
    assert job.ask("inject", "kill-node", "1").returncode == 0
    until(lambda: names(job).count("recovered") == 2, 60, "the spare has taken over")
    hurry(job)
    broken = finished(job)
    broken.assert_same_as(reference)
    while_full, later = broken.summary["recoveries"]
    assert while_full["resume_step"] == GROWS_AT
    assert later["steps_reexecuted"] <= 2
    assert broken.summary["committed_steps_lost"] == 0
    off = [event for event in job.events() if event["event"] == "unprotected"]
    assert {event["since_step"] for event in off} == {GROWS_AT + 1}
    assert "bytes more" in off[0]["reason"]
    assert f"unprotected since step {GROWS_AT + 1}" in job.err


def names(job: Job) -> list[str]:
    return [event["event"] for event in job.events()]


def after_last(names: list[str], name: str) -> list[str]:
    """Returns what comes after the last one of that name; nothing when there is none."""
    return names[len(names) - names[::-1].index(name) :] if name in names else []
