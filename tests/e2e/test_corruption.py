"""A bit flips in a rank's memory while it trains: the ranks that hold the same notice, and the job is what it would have been."""

import json
from pathlib import Path

import pytest
from launching import Job, Launcher
from training import Training, finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "growing.py")
STEPS, FLIPPED_AT, VERIFY_EVERY = 30, 13, 4  # it shows in the very next commit, which the ranks then compare


def start(launcher: Launcher, nproc: int, *options: str) -> Job:
    return start_with(launcher, ("--nproc-per-node", str(nproc), "--verify-every", str(VERIFY_EVERY)), *options)


def start_with(launcher: Launcher, launch: tuple[str, ...], *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--summary-json", "summary.json")
    training = ("--steps", str(STEPS), "--grows-at", "0", "--grows-by", "64")
    return launcher.start(*nodes, *launch, SCRIPT, *training, *options)


def losses(training: Training) -> set[str]:
    """Returns the lines of the steps that were not done twice: each is yielded once."""
    lines = training.losses.read_text().splitlines()
    return {line for line in lines if json.loads(line)["step"] not in range(FLIPPED_AT, FLIPPED_AT + VERIFY_EVERY)}


def test_an_outvoted_rank_is_replaced_and_all_go_back_to_what_was_the_same(launcher: Launcher) -> None:
    """What all ranks have computed since then came from wrong bytes: it is done again, to the bit."""
    reference = finished(start(launcher, 2))
    job = start(launcher, 2, "--flip", "2", str(FLIPPED_AT))
    broken = finished(job)
    assert sorted(broken.digests.read_text().splitlines()) == sorted(reference.digests.read_text().splitlines())
    assert losses(broken) == losses(reference)
    (recovery,) = broken.summary["recoveries"]
    assert (recovery["ranks"], recovery["resume_step"]) == ([2], FLIPPED_AT), recovery
    assert "silent corruption" in recovery["cause"]
    (differs,) = [event for event in job.events() if event["event"] == "state_differs"]
    assert (differs["ranks"], differs["step"], differs["good_step"]) == ([2], FLIPPED_AT + 1, FLIPPED_AT), differs


def test_of_two_ranks_both_are_named_and_the_job_says_that_it_is_not_protected_against_it(launcher: Launcher) -> None:
    job = start(launcher, 1, "--flip", "1", str(FLIPPED_AT))
    finished(job)
    (differs,) = [event for event in job.events() if event["event"] == "state_differs"]
    assert (differs["ranks"], differs["step"], differs["repair"]) == ([0, 1], FLIPPED_AT + 1, "none"), differs
    (unprotected,) = [event for event in job.events() if event["event"] == "unprotected"]
    assert unprotected["since_step"] == FLIPPED_AT + 1
    assert "nobody can tell" in job.err


def test_where_nothing_is_compared_a_lost_rank_comes_back_as_it_was(launcher: Launcher) -> None:
    """What it no longer holds as its peers do has travelled since then: the job is the unbroken one, its flipped bit included."""
    reference = finished(start_with(launcher, ("--nproc-per-node", "2"), "--flip", "2", str(FLIPPED_AT)))
    keeping = ("--checkpoint-dir", "checkpoints", "--checkpoint-every", "5", "--spares", "1", "--inject", "kill-node:1@22")
    job = start_with(launcher, ("--nproc-per-node", "2", *keeping), "--flip", "2", str(FLIPPED_AT))
    broken = finished(job)
    assert sorted(broken.digests.read_text().splitlines()) == sorted(reference.digests.read_text().splitlines())
    (recovery,) = broken.summary["recoveries"]
    assert (recovery["node"], broken.summary["committed_steps_lost"]) == ("node1", 0)
    assert not [event for event in job.events() if event["event"] in ("copies_contradict", "checkpoint_failed")]
