"""deadpool.integrations.accelerate: ranks and nodes die, and the training over a prepared loader is the unbroken one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from example_jobs import Example, assert_one_recovery
from launching import Launcher
from training import ROOT, Training, finished

pytestmark = pytest.mark.e2e
pytest.importorskip("accelerate")

SCRIPT = ROOT / "examples" / "train_accelerate.py"
PLAIN = Example(SCRIPT, (), ranks_per_node=1)
ALL = Example(SCRIPT, ("--bf16", "--workers", "2", "--accumulate", "3"), ranks_per_node=1)
KILL_BOTH = ("--inject", "kill-node:1@7", "--inject", "kill-rank:0@14")
long = pytest.mark.long
Unbroken = Callable[[Example], Training]


@pytest.mark.parametrize("example", [pytest.param(PLAIN, id="plain"), pytest.param(ALL, id="all", marks=long)])
def test_the_training_is_the_unbroken_one(launcher: Launcher, unbroken_example: Unbroken, example: Example) -> None:
    broken = finished(example.start(launcher, *KILL_BOTH))
    broken.assert_same_as(unbroken_example(example))
    assert [recovery["survivors_kept_processes"] for recovery in broken.summary["recoveries"]] == [True, True]
    assert broken.summary["committed_steps_lost"] == 0


@long
@pytest.mark.parametrize("example", [PLAIN, ALL], ids=["plain", "all"])
def test_drained(launcher: Launcher, unbroken_example: Unbroken, example: Example) -> None:
    moved = example.drained(launcher)
    moved.assert_same_as(unbroken_example(example))
    assert_one_recovery(moved)


@long
@pytest.mark.parametrize("example", [PLAIN, ALL], ids=["plain", "all"])
def test_started_again_from_disk(launcher: Launcher, unbroken_example: Unbroken, example: Example, tmp_path: Path) -> None:
    example.assert_starts_again_from_disk(launcher, tmp_path / "disk", unbroken_example(example))


@long
@pytest.mark.parametrize("example", [PLAIN, ALL], ids=["plain", "all"])
def test_under_torchrun(unbroken_example: Unbroken, example: Example, tmp_path: Path) -> None:
    example.under_torchrun(tmp_path).assert_same_as(unbroken_example(example))


@long
@pytest.mark.parametrize("example", [PLAIN, ALL], ids=["plain", "all"])
def test_without_hooks(launcher: Launcher, unbroken_example: Unbroken, example: Example) -> None:
    example.without_hooks(launcher).assert_same_as(unbroken_example(example))
