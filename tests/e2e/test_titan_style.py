"""The torchtitan-style example under failures: the training is the unbroken one, bit for bit, and so are its own checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from example_jobs import KILLS, Example, assert_one_recovery
from launching import Launcher
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from training import ROOT, Training, finished

pytest.importorskip("torchdata")
pytestmark = pytest.mark.e2e

ARGUMENTS = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2", "--log-every", "4")
SAVED = ("--checkpoint-dir", "saved", "--checkpoint-every", "8")
TITAN = Example(ROOT / "examples" / "train_titan_style.py", (*ARGUMENTS, *SAVED))
KILLED_SAVING = Example(ROOT / "tests" / "support" / "titan_killed_saving.py", (*ARGUMENTS, *SAVED))
long = pytest.mark.long


@pytest.fixture
def titan(unbroken_example: Callable[[Example], Training]) -> Training:
    """The unbroken run."""
    return unbroken_example(TITAN)


def checkpoints(run: Training, folder: Path) -> dict[str, Any]:
    """Returns everything in the run's checkpoints, by their names."""
    found = {}
    for each in sorted((run.losses.parent / "saved").iterdir()):
        dcp_to_torch_save(each, folder / "whole.pt")
        found[each.name] = torch.load(folder / "whole.pt", weights_only=False)
    return found


def assert_alike(mine: Any, theirs: Any) -> int:
    """Both hold the same tensors and values, to the bit. Returns how many tensors."""
    if isinstance(theirs, torch.Tensor):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
        return 1
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys()
        return sum(assert_alike(mine[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return sum(assert_alike(one, other) for one, other in zip(mine, theirs, strict=True))
    assert mine == theirs
    return 0


@pytest.mark.parametrize("kill", [pytest.param("kill-node", marks=long), pytest.param("kill-rank", marks=long)])
def test_killed(launcher: Launcher, titan: Training, tmp_path: Path, kill: str) -> None:
    broken = finished(TITAN.start(launcher, "--inject", KILLS[kill]))
    assert_one_recovery(broken)
    broken.assert_same_as(titan)
    mine, theirs = checkpoints(broken, tmp_path), checkpoints(titan, tmp_path)
    assert sorted(theirs) == ["step-16", "step-24", "step-8"]
    assert assert_alike(mine, theirs) > 100


def test_killed_while_it_writes_a_checkpoint(launcher: Launcher, titan: Training, tmp_path: Path) -> None:
    """And a node later: what a body has begun to write is written again, whole."""
    broken = finished(KILLED_SAVING.start(launcher, "--inject", "kill-node:1@18"))
    assert len(broken.summary["recoveries"]) == 2
    broken.assert_same_as(titan)
    assert_alike(checkpoints(broken, tmp_path), checkpoints(titan, tmp_path))


@long
def test_drained(launcher: Launcher, titan: Training) -> None:
    moved = TITAN.drained(launcher)
    assert_one_recovery(moved)
    moved.assert_same_as(titan)


@long
def test_started_again_from_disk(launcher: Launcher, titan: Training, tmp_path: Path) -> None:
    Example(TITAN.script, ARGUMENTS).assert_starts_again_from_disk(launcher, tmp_path / "disk", titan)


@long
def test_under_torchrun(titan: Training, tmp_path: Path) -> None:
    TITAN.under_torchrun(tmp_path).assert_same_as(titan)


@long
def test_without_hooks(launcher: Launcher, titan: Training) -> None:
    TITAN.without_hooks(launcher).assert_same_as(titan)
