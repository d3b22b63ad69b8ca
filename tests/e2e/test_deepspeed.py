"""DeepSpeed's engine under failures: `pytest -m long tests/e2e/test_deepspeed.py`, with the extra `deepspeed` installed."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from example_jobs import KILLS, Example, assert_one_recovery, run
from launching import Launcher
from training import ROOT, Training, finished

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(500),
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs the extra `deepspeed`"),
]

SIZES = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2")
WAYS = {
    "zero1": ("--stage", "1"),
    "zero2": ("--stage", "2"),
    "zero1-bf16": ("--stage", "1", "--bf16"),
    "zero2-bf16": ("--stage", "2", "--bf16"),
}
_BUILD_S = 400.0


def example(*way: str) -> Example:
    return Example(ROOT / "examples" / "train_deepspeed.py", (*SIZES, *way))


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """DeepSpeed compiles its CPU communication when it is first used on a machine, which takes minutes."""
    build = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
    run((sys.executable, "-c", build), tmp_path_factory.mktemp("built"), dict(os.environ), _BUILD_S)


@pytest.fixture
def whole(unbroken_example: Callable[[Example], Training], way: str) -> Training:
    """The unbroken run of the test's way."""
    return unbroken_example(example(*WAYS[way]))


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("way", WAYS)
def test_killed(launcher: Launcher, whole: Training, way: str, kill: str) -> None:
    broken = finished(example(*WAYS[way]).start(launcher, "--inject", KILLS[kill]))
    assert_one_recovery(broken)
    broken.assert_same_as(whole)


@pytest.mark.parametrize("way", WAYS)
def test_drained(launcher: Launcher, whole: Training, way: str) -> None:
    moved = example(*WAYS[way]).drained(launcher)
    assert_one_recovery(moved)
    moved.assert_same_as(whole)


@pytest.mark.parametrize("way", WAYS)
def test_started_again_from_disk(launcher: Launcher, whole: Training, way: str, tmp_path: Path) -> None:
    example(*WAYS[way]).assert_starts_again_from_disk(launcher, tmp_path / "disk", whole)


@pytest.mark.parametrize("way", WAYS)
def test_under_torchrun(whole: Training, way: str, tmp_path: Path) -> None:
    example(*WAYS[way]).under_torchrun(tmp_path).assert_same_as(whole)


@pytest.mark.parametrize("way", WAYS)
def test_without_hooks(launcher: Launcher, whole: Training, way: str) -> None:
    example(*WAYS[way]).without_hooks(launcher).assert_same_as(whole)


def test_zero3_is_refused(launcher: Launcher) -> None:
    outcome = example("--stage", "3").start(launcher).wait()
    assert outcome.exit_code == 2
    assert "ZeRO-3 cannot be protected" in outcome.err


@pytest.mark.parametrize("stage", ["1", "2"])
def test_a_step_that_was_broken_off_leaves_nothing(tmp_path: Path, stage: str) -> None:
    run((sys.executable, str(ROOT / "tests" / "support" / "deepspeed_broken_step.py"), stage), tmp_path, dict(os.environ))
