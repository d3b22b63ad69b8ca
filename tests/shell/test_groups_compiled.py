"""Groups are opaque to Dynamo: compile(DDP(model)) trains, and a killed rank and a killed node change not one bit."""

from pathlib import Path

import pytest
from launching import Job, Launcher
from training import finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "compiled.py")


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, SCRIPT, "20")


@pytest.mark.timeout(200)
def test_a_compiled_ddp_loses_a_rank_and_a_node(launcher: Launcher) -> None:
    unbroken = finished(start(launcher))
    broken = finished(start(launcher, "--inject", "kill-rank:1@5", "--inject", "kill-node:1@13"))
    assert len(broken.summary["recoveries"]) == 2
    broken.assert_same_as(unbroken)
