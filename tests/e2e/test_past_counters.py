"""What no version counter shows, and ranks that part by right: one training with both, a node and a rank lost, to the bit."""

from pathlib import Path

import pytest
from launching import Job, Launcher
from training import finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "past_counters.py")


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, SCRIPT, "--steps", "24")


def test_writes_through_data_and_ranks_that_part_come_back_as_they_were(launcher: Launcher) -> None:
    unbroken = finished(start(launcher))
    broken = finished(start(launcher, "--inject", "kill-node:1@12", "--inject", "kill-rank:1@16"))
    broken.assert_same_as(unbroken)
    assert broken.summary["committed_steps_lost"] == 0
