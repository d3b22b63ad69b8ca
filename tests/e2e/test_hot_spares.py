"""A spare has built and rehearsed a node's ranks before that node fails: its stand-ins go on in their place, to the bit."""

from pathlib import Path
from typing import Any

import pytest
from launching import Job, Launcher, until
from training import finished, hurry

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "growing.py")


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, SCRIPT, "--steps", "400", "--step-s", "0.2", "--grows-at", "3", "--grows-by", "64")


def event(job: Job, name: str) -> dict[str, Any]:
    return until(lambda: [each for each in job.events() if each["event"] == name], 60, name)[0]


def test_a_hot_spare_takes_the_seat_that_it_is_hot_for(launcher: Launcher) -> None:
    unbroken = start(launcher)
    hurry(unbroken)
    reference = finished(unbroken)

    job = start(launcher, "--spare-readiness", "hot")
    assert event(job, "is_hot")["ranks"] == [0]
    (spare,) = [node for node in job.status()["nodes"] if node["role"] == "spare"]
    assert spare["hot_ranks"] == [0]
    assert job.ask("inject", "kill-node", "0").returncode == 0
    assert event(job, "recovered")["spare"] == spare["node_id"]
    assert event(job, "spare_chosen")["reason"] == f"{spare['node_id']} is hot for this seat"
    hurry(job)
    broken = finished(job)
    broken.assert_same_as(reference)
    assert broken.summary["committed_steps_lost"] == 0
    print(f"recovered in {broken.summary['recoveries'][0]['total_s']:.2f} s: {broken.summary['recoveries'][0]['phases_s']}")
