"""Every parallelism: under torchrun, without hooks, with a node or a rank lost, drained, started again from disk: the same.

Bit for bit, held-out losses included. The rows of docs/compatibility.md name these tests.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import Job, Launcher, until
from training import EVAL_EVERY, ON_8_RANKS, SLOWLY, Training, finished, hurry, lines, lost_once_on_disk, nodes, script, start

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

UNHOOKED = str(Path(__file__).parents[1] / "support" / "unhooked.py")
WAYS = ("ddp", "zero", "fsdp", "hsdp", "tp-fsdp", "pp", "3d", "megatron")
FAST = {"node": ("tp-fsdp",), "rank": ("pp",), "disk": ("pp",)}  # these run with all others
EVALUATES = EVAL_EVERY - 1  # a step in which the held-out loss is due, after the update in whose middle injections happen


def ways(loses: str) -> list[object]:
    return [way if way in FAST.get(loses, ()) else pytest.param(way, marks=pytest.mark.long) for way in WAYS]


def one_recovery(training: Training, *, kind: str, ranks: int) -> None:
    (recovery,) = training.summary["recoveries"]
    assert (recovery["class"], len(recovery["ranks"])) == (kind, ranks)
    assert recovery["survivors_kept_processes"]
    assert recovery["steps_reexecuted"] <= 2
    assert training.summary["committed_steps_lost"] == 0
    print(f"recovered in {recovery['total_s']:.2f} s: {recovery['phases_s']}")


@pytest.mark.parametrize("parallel", ways("torchrun"))
def test_the_same_under_torchrun(reference: Training, parallel: str, tmp_path: Path) -> None:
    ranks = ("--nproc-per-node", "8" if parallel in ON_8_RANKS else "4")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *ranks, *script(parallel)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "losses") == lines(reference.losses)
    assert lines(tmp_path / "digests") == lines(reference.digests)


@pytest.mark.parametrize("parallel", ways("unhooked"))
def test_without_hooks(launcher: Launcher, reference: Training, parallel: str) -> None:
    job = launcher.start("--standalone", *nodes(parallel), UNHOOKED, *script(parallel))
    outcome = job.wait()
    assert outcome.exit_code == 0, outcome.err
    assert "hooked" not in [event["event"] for event in job.events()]
    assert lines(job.folder / "losses") == lines(reference.losses)
    assert lines(job.folder / "digests") == lines(reference.digests)


@pytest.mark.parametrize("parallel", ways("node"))
def test_a_lost_node(launcher: Launcher, reference: Training, parallel: str) -> None:
    broken = finished(start(launcher, parallel, "--inject", f"kill-node:1@{EVALUATES}"))
    broken.assert_same_as(reference)
    one_recovery(broken, kind="permanent", ranks=reference.ranks // 2)


@pytest.mark.parametrize("parallel", ways("rank"))
def test_a_lost_rank(launcher: Launcher, reference: Training, parallel: str) -> None:
    broken = finished(start(launcher, parallel, "--inject", f"kill-rank:1@{EVALUATES}"))
    broken.assert_same_as(reference)
    one_recovery(broken, kind="transient", ranks=1)


@pytest.mark.parametrize("parallel", ways("drain"))
def test_a_drained_node(launcher: Launcher, reference: Training, parallel: str) -> None:
    job = start(launcher, parallel, slowly=True)
    until(lambda: len(lines(job.folder / "losses")) > reference.ranks, 100, "some steps are done")
    drained = job.ask("drain", "node1")
    assert drained.returncode == 0, drained.stderr
    hurry(job)
    moved = finished(job)
    moved.assert_same_as(reference)
    one_recovery(moved, kind="planned", ranks=reference.ranks // 2)


@pytest.mark.parametrize("parallel", ways("disk"))
def test_started_again_from_disk(launcher: Launcher, reference: Training, parallel: str, tmp_path: Path) -> None:
    """The job ends with a lost node that nothing replaces; a second one goes on from the newest checkpoint."""
    disk = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-every", "4")
    alone = ("--standalone", *nodes(parallel), "--on-exhausted", "abort", "--summary-json", "summary.json")
    ended = launcher.start(*alone, *disk, SLOWLY, *script(parallel))
    lost_once_on_disk(ended)
    again = finished(job := start(launcher, parallel, *disk))
    assert found(job) >= 4
    assert lines(ended.folder / "losses") | lines(again.losses) == lines(reference.losses)
    assert lines(again.digests) == lines(reference.digests)


def found(job: Job) -> int:
    """Returns the step of the checkpoint that the job has gone on from."""
    return next(int(event["step"]) for event in job.events() if event["event"] == "checkpoint_found")


@pytest.mark.long
@pytest.mark.parametrize(
    ("parallel", "training"),
    [
        ("pp", ("--accumulate", "2")),
        ("pp", ("--compile",)),
        ("pp", ("--bf16", "--activation-checkpointing")),
        ("tp-fsdp", ("--compile",)),
        ("tp-fsdp", ("--accumulate", "2", "--bf16")),
        ("3d", ("--accumulate", "2", "--bf16", "--activation-checkpointing")),
    ],
    ids=[
        "pp-accumulate",
        "pp-compile",
        "pp-bf16-checkpointing",
        "tp-fsdp-compile",
        "tp-fsdp-accumulate-bf16",
        "3d-three",
    ],
)
def test_together_with(launcher: Launcher, parallel: str, training: tuple[str, ...]) -> None:
    unbroken = finished(start(launcher, parallel, training=training))
    both = ("--inject", f"kill-node:1@{EVALUATES}", "--inject", "kill-rank:0@22")
    broken = finished(start(launcher, parallel, *both, training=training))
    broken.assert_same_as(unbroken)
    assert [recovery["class"] for recovery in broken.summary["recoveries"]] == ["permanent", "transient"]
