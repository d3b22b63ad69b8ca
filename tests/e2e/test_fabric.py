"""Lightning Fabric under failures: a script with a loop of its own trains as if there were none, and as without us."""

from collections.abc import Callable
from pathlib import Path

import pytest
from example_jobs import KILLS, Example, assert_one_recovery
from launching import Launcher
from training import ROOT, Training, finished

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300)]
pytest.importorskip("lightning")

SCRIPT = ROOT / "tests" / "support" / "fabric.py"
FABRIC = Example(SCRIPT, (), ranks_per_node=1)
PLAIN = Example(SCRIPT, ("--plain",), ranks_per_node=1)


@pytest.fixture
def whole(unbroken_example: Callable[[Example], Training]) -> Training:
    """The unbroken run."""
    return unbroken_example(FABRIC)


@pytest.mark.parametrize("kill", KILLS)
def test_killed(launcher: Launcher, whole: Training, kill: str) -> None:
    broken = finished(FABRIC.start(launcher, "--inject", KILLS[kill]))
    assert_one_recovery(broken)
    broken.assert_same_as(whole)


def test_drained(launcher: Launcher, whole: Training) -> None:
    moved = FABRIC.drained(launcher)
    assert_one_recovery(moved)
    moved.assert_same_as(whole)


def test_started_again_from_disk(launcher: Launcher, whole: Training, tmp_path: Path) -> None:
    FABRIC.assert_starts_again_from_disk(launcher, tmp_path / "disk", whole)


@pytest.mark.parametrize("example", [FABRIC, PLAIN], ids=["hooked", "plain"])
def test_under_torchrun(whole: Training, example: Example, tmp_path: Path) -> None:
    example.under_torchrun(tmp_path).assert_same_as(whole)


def test_without_hooks(launcher: Launcher, whole: Training) -> None:
    finished(PLAIN.start(launcher)).assert_same_as(whole)
