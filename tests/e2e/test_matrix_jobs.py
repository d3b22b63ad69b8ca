"""A dozen cells of the matrix as real jobs: a node and a rank are killed, and the training is the unbroken one, bit for bit."""

import json
from pathlib import Path

import pytest
from launching import Job, Launcher

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SCRIPT = str(Path(__file__).parents[1] / "support" / "matrix_script.py")
STEPS = 18
KILL_BOTH = ("--inject", "kill-node:1@4", "--inject", "kill-rank:1@11")  # right after the training has changed; and later
CELLS = {
    "ddp": ("evaluation,batchnorm,ema", "accumulation,growing,unfreezing", "lbfgs,tied"),
    "zero": ("accumulation,amp,plateau", "two-optimizers,frozen,syncbn"),
    "fsdp": ("evaluation,checkpointing,tied", "group-added,ema,plateau"),
    "hsdp": ("evaluation,amp,fused", "unfreezing,growing"),
    "tp": ("evaluation,two-optimizers", "foreach,frozen,accumulation"),
    "tp-fsdp": ("evaluation,ema,syncbn",),
}


def start(launcher: Launcher, parallel: str, pieces: str, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1")
    return launcher.start(*nodes, *options, SCRIPT, parallel, pieces, str(STEPS))


def lines(job: Job, name: str) -> list[str]:
    """Returns a file's different lines: what was written twice must have been written the same."""
    return sorted(set((job.folder / name).read_text().splitlines()))


@pytest.mark.parametrize(("parallel", "pieces"), [(parallel, each) for parallel, all_of in CELLS.items() for each in all_of])
def test_a_killed_node_and_a_killed_rank_change_nothing(launcher: Launcher, parallel: str, pieces: str) -> None:
    unbroken, broken = start(launcher, parallel, pieces), start(launcher, parallel, pieces, *KILL_BOTH)
    for job in (unbroken, broken):
        outcome = job.wait()
        assert outcome.exit_code == 0, outcome.out + outcome.err
    assert len([event for event in broken.events() if event["event"] == "recovered"]) == 2
    assert lines(broken, "losses") == lines(unbroken, "losses")
    assert len(lines(broken, "losses")) == 2 * STEPS
    mine, theirs = ([json.loads(line) for line in lines(job, "digests")] for job in (broken, unbroken))
    for held, expected in zip(mine, theirs, strict=True):
        assert held["items"] == expected["items"]
        assert held["meta"] == expected["meta"]
