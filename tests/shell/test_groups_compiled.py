"""Groups are opaque to Dynamo: compile(DDP(model)) trains, and a killed rank and a killed node change not one bit."""

import shutil
from pathlib import Path

import pytest
from launching import Job, Launcher
from training import finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "compiled.py")


def start(launcher: Launcher, backend: str, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, SCRIPT, "20", backend)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_compiled_ddp_loses_a_rank_and_a_node(launcher: Launcher, backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    unbroken = finished(start(launcher, backend))
    broken = finished(start(launcher, backend, "--inject", "kill-rank:1@5", "--inject", "kill-node:1@13"))
    assert len(broken.summary["recoveries"]) == 2
    broken.assert_same_as(unbroken)
