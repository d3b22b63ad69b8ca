"""`accelerate launch` around deadpool-launch and within it: its configuration reaches every rank, and kills change nothing."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_jobs import assert_one_recovery
from launching import Job, Launcher, launching
from training import ROOT, Training, finished

pytest.importorskip("accelerate")
pytestmark = [pytest.mark.e2e, pytest.mark.long]

SUPPORT = ROOT / "tests" / "support"
NODES = ("--standalone", "--nnodes", "2", "--summary-json", "summary.json")
ACCELERATE = ("--cpu", "--num_processes", "1", "--mixed_precision", "bf16")
KILL = ("--inject", "kill-rank:1@6")
STEPS = "16"


def said(job: Job) -> list[object]:
    """Returns what each rank's Accelerator found: [world size, mixed precision, backend of Dynamo]."""
    return [json.loads(line.partition("] ")[2]) for line in job.out.splitlines() if line.startswith("[rank ")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A module under deadpool-launch; what accelerate launch would set is in the environment."""
    environment = {"PYTHONPATH": str(SUPPORT), "ACCELERATE_MIXED_PRECISION": "bf16"}
    with launching(tmp_path_factory.mktemp("accelerated")) as launcher:
        job = launcher.start(*NODES, "-m", "accelerated", STEPS, environment=environment, cold=True)
        yield finished(job)
        assert said(job) == [[2, "bf16", "NO"]] * 2


def test_around(launcher: Launcher, unbroken: Training) -> None:
    """accelerate launch starts deadpool-launch once, which starts the ranks."""
    ours = str(Path(sys.executable).with_name("deadpool-launch"))
    program = ("accelerate.commands.launch", *ACCELERATE, "--no_python", ours)
    job = launcher.start(*NODES, *KILL, str(SUPPORT / "accelerated.py"), STEPS, program=program, cold=True)
    broken = finished(job)
    assert said(job) == [[2, "bf16", "NO"]] * 2
    assert_one_recovery(broken)
    broken.assert_same_as(unbroken)


def test_within(launcher: Launcher, unbroken: Training) -> None:
    """Each rank is an accelerate launch, whose child is the script."""
    theirs = str(Path(sys.executable).with_name("accelerate"))
    rank = (theirs, "launch", *ACCELERATE, str(SUPPORT / "accelerated.py"), STEPS)
    job = launcher.start(*NODES, *KILL, "--no-python", *rank)
    broken = finished(job)
    assert [2, "bf16", "NO"] in said(job)
    assert_one_recovery(broken)
    broken.assert_same_as(unbroken)
