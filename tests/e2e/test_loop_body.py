"""A loop body may communicate: a rank dies in each thing that people do there, and what the script sees is the unbroken run."""

from pathlib import Path

import pytest
from launching import Job, Launcher
from training import ROOT, assert_same, finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "bodies.py")
PLACES = (("step", 2), ("log", 4), ("save", 5), ("evaluate", 9), ("test", 10))


def start(launcher: Launcher, *arguments: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, SCRIPT, "--steps", "30", *arguments)


def test_logging_evaluation_checkpoint_and_early_stop(launcher: Launcher) -> None:
    reference = finished(start(launcher))
    die = [word for place, step in PLACES for word in ("--die", place, str(step))]
    broken = finished(start(launcher, *die))
    broken.assert_same_as(reference)
    assert broken.summary["generations"] == 1 + len(PLACES)  # a death may come before the recovery from the one before is over
    assert broken.summary["committed_steps_lost"] == 0


def test_a_loop_of_the_scripts_own(launcher: Launcher) -> None:
    script = ("--standalone", "--nnodes", "2", str(ROOT / "examples" / "own_loop.py"), "--log", "losses", "--steps", "60")
    unbroken, broken = launcher.start(*script), launcher.start("--inject", "kill-rank:1@12", *script)
    assert unbroken.wait().exit_code == broken.wait().exit_code == 0, broken.err
    assert "recovered" in [event["event"] for event in broken.events()]
    assert_same(unbroken.folder / "losses", broken.folder / "losses")
