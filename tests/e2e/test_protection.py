"""Protection that cannot go on: training does, the job says since when it is unprotected and why, and when that is over."""

import os
from pathlib import Path

import pytest
from launching import Job, Launcher
from training import finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).with_name("growing.py"))
STEPS, GROWS_AT, GROWS_BY = 70, 12, 1 << 16  # a slot needs 2 MiB more then: each rank has two of its own, and two at its holder
SHM_BYTES = 96 << 20


def start(launcher: Launcher, *options: str) -> Job:
    growing = ("--steps", str(STEPS), "--grows-at", str(GROWS_AT), "--grows-by", str(GROWS_BY))
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, SCRIPT, *growing, shm_bytes=SHM_BYTES)


@pytest.mark.skipif(os.geteuid() != 0, reason="a /dev/shm of its own needs root")
@pytest.mark.long
def test_a_full_shm_stops_protection_not_training(launcher: Launcher) -> None:
    """The state outgrows its slots while /dev/shm is full. A rank that is killed meanwhile comes back at the newest commit.

    When there is room again the job is protected, and a node that is killed then costs what it always does.
    """
    reference = finished(start(launcher))
    faults = ("fill-shm:0@8", "kill-rank:1@13", "free-shm:0@14", "kill-node:1@50")  # they wait for a commit, ten steps at most
    job = start(launcher, *(word for fault in faults for word in ("--inject", fault)))
    broken = finished(job)
    broken.assert_same_as(reference)
    events = [event for event in job.events() if event["event"] in ("unprotected", "protected_again", "recovered", "injection")]
    while_full, later = broken.summary["recoveries"]
    assert while_full["resume_step"] == GROWS_AT, events
    assert while_full["steps_reexecuted"] >= 10, events
    assert later["steps_reexecuted"] <= 2, events
    assert broken.summary["committed_steps_lost"] == 0
    off = [event for event in events if event["event"] == "unprotected"]
    assert {event["since_step"] for event in off} == {GROWS_AT + 1}, events
    assert "bytes more" in off[0]["reason"], events
    assert f"unprotected since step {GROWS_AT + 1}" in job.err
    names = [event["event"] for event in events]
    assert "protected_again" in names[len(names) - names[::-1].index("unprotected") :], events
