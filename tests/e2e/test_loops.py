"""Several loops in one training: a rank dies between two and in each kind of step; losses and evaluations are the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from launching import Job, Launcher
from training import Training, assert_same, finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "epochs.py")
NODES = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--summary-json", "summary.json")
PLACES = (("step", 4), ("step", 6), ("between", 8))  # the first of a loop, well inside, behind it


def start(launcher: Launcher, *arguments: str, options: tuple[str, ...] = ()) -> Job:
    return launcher.start(*NODES, *options, SCRIPT, *arguments)


def dying(*places: tuple[str, int]) -> list[str]:
    return [word for place, step in places for word in ("--die", place, str(step))]


def test_a_rank_dies_in_a_later_loop_and_between_two(launcher: Launcher) -> None:
    reference = finished(start(launcher))
    job = start(launcher, *dying(*PLACES))
    broken = finished(job)
    broken.assert_same_as(reference)
    assert broken.summary["generations"] == 1 + len(PLACES)  # a death may come before the recovery from the one before is over
    plans = [event["resume_step"] for event in job.events() if event["event"] == "plan"]
    assert (plans[0], plans[-1]) == (4, 8), plans  # a loop ends when its last state is committed
    assert broken.summary["committed_steps_lost"] == 0
    logs = "".join(log.read_text() for log in job.log_dir.glob("node*/rank-*.log"))
    assert "runs before this process has caught up" in logs


@pytest.mark.long
@pytest.mark.parametrize("step", [3, 4, 5, 8, 9, 11])
@pytest.mark.parametrize("own_loop", [False, True])
def test_a_node_is_lost_around_the_end_of_a_loop(launcher: Launcher, step: int, own_loop: bool) -> None:
    how = ("--own-loop",) if own_loop else ()
    reference = finished(start(launcher, *how))
    finished(start(launcher, *how, options=("--spares", "1", "--inject", f"kill-node:1@{step}"))).assert_same_as(reference)


@pytest.mark.long
def test_a_training_that_was_stopped_in_a_later_loop_goes_on_there(launcher: Launcher) -> None:
    """The loops before it are passed, by all ranks together: what stands between them is not written again."""
    reference = finished(start(launcher))
    kept = ("--checkpoint-dir", str(launcher.folder / "kept"), "--checkpoint-every", "1")
    first = start(launcher, "--epochs", "2", options=kept)
    begun = finished(first)
    job = start(launcher, options=(*kept, "--resume", "auto"))
    resumed = finished(job)
    lines = [json.loads(line) for line in (begun.losses.read_text() + resumed.losses.read_text()).splitlines()]
    whole = job.folder / "whole"
    whole.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_same(reference.losses, whole)
    assert {line["step"] for line in steps_of(resumed)} == {8, 9, 10, 11, 1008, 1012}


def steps_of(training: Training) -> list[dict[str, Any]]:
    return [json.loads(line) for line in training.losses.read_text().splitlines()]
