"""deadpool.integrations.accelerate: ranks and nodes die, and the training over a prepared loader is the unbroken one."""

import os
import subprocess
import sys

import pytest
from launching import Job, Launcher
from training import ROOT, assert_same, finished

pytestmark = pytest.mark.e2e
pytest.importorskip("accelerate")

SCRIPT = (str(ROOT / "examples" / "train_accelerate.py"), "--loss-log", "losses", "--digest", "digests")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as torchrun sets it for several ranks on a node: sums depend on how many share them
KILL_BOTH = ("--inject", "kill-node:1@7", "--inject", "kill-rank:0@14")


def start(launcher: Launcher, *arguments: str, inject: tuple[str, ...] = ()) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *inject, *SCRIPT, "--steps", "20", *arguments, environment=ONE_THREAD)


@pytest.mark.parametrize(
    "arguments", [(), pytest.param(("--bf16", "--workers", "2", "--accumulate", "3"), marks=pytest.mark.long)]
)
def test_the_training_is_the_unbroken_one(launcher: Launcher, arguments: tuple[str, ...]) -> None:
    reference, broken = (finished(start(launcher, *arguments, inject=inject)) for inject in ((), KILL_BOTH))
    broken.assert_same_as(reference)
    assert [recovery["survivors_kept_processes"] for recovery in broken.summary["recoveries"]] == [True, True]
    assert broken.summary["committed_steps_lost"] == 0


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_losses_are_those_under_torchrun(launcher: Launcher) -> None:
    ours = start(launcher)
    finished(ours)
    folder = launcher.folder / "torchrun"
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *SCRIPT, "--steps", "20"]
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(ours.folder / "losses", folder / "losses")
    assert_same(ours.folder / "digests", folder / "digests")
