"""--on-loss exclude: the others go on without the ranks of a lost node, as computed by hand; when a node comes they return."""

import json
from pathlib import Path
from typing import Any

import data_parallel
import pytest
from launching import Job, Launcher, until

from deadpool.proto.step import NO_STEP

pytestmark = pytest.mark.e2e
SCRIPT = str(Path(__file__).parents[1] / "support" / "data_parallel.py")


def start(launcher: Launcher, *script: str) -> Job:
    """A rank on each of two nodes and a spare; the second node is lost once a commit is known."""
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1")
    job = launcher.start(*nodes, "--on-loss", "exclude", "--summary-json", "summary.json", SCRIPT, *script)
    until(lambda: "hooked" in {event["event"] for event in job.events()}, 60, "the ranks have joined")
    until(lambda: job.status()["commit_step"] > 0, 60, "a commit is known")
    (node,) = [each for each in job.status()["nodes"] if [rank["rank"] for rank in each["ranks"]] == [1]]
    assert job.ask("inject", "kill-node", str(node["index"])).returncode == 0
    return job


def recovered(job: Job) -> list[dict[str, Any]]:
    return [event for event in job.events() if event["event"] == "recovered"]


def told(job: Job) -> dict[tuple[int, int], dict[str, Any]]:
    """Returns what each (rank, step) has logged; a line for the same step later on is the true one."""
    lines = (job.folder / "steps").read_text().splitlines()
    return {(each["rank"], each["step"]): each for each in map(json.loads, lines)}


def test_the_others_go_on_and_the_lost_rank_returns(launcher: Launcher) -> None:
    job = start(launcher)
    until(lambda: len(recovered(job)) >= 2, 100, "rank 1 is back")
    without, back = recovered(job)
    assert (without["ranks"], without["excluded"], without["returned"]) == ([1], [1], [])
    assert (back["failure_class"], back["ranks"], back["excluded"], back["returned"]) == ("planned", [1], [], [1])
    first, last = without["resume_step"], back["resume_step"]
    until(lambda: (1, last + 20) in told(job), 60, "some steps are done together again")
    status = job.status()
    assert (status["excluded"], status["another_since_step"]) == ([], first)
    assert f"not the unbroken run since step {first}" in job.ask("status").stdout
    assert job.ask("stop").returncode == 0
    assert job.wait().exit_code == 143
    assert "goes on without rank 1 (no more the unbroken run), resumed at step" in job.err

    summary = json.loads((job.folder / "summary.json").read_text())
    assert (summary["another_since_step"], summary["excluded"]) == (first, [])
    assert all(recovery["survivors_kept_processes"] for recovery in summary["recoveries"])
    expected, found = data_parallel.by_hand(last + 20, lambda step: [0] if first <= step < last else [0, 1]), told(job)
    if (1, first - 1) not in found:  # it was lost with the step done, before it could say so
        del expected[1, first - 1]
    assert {key: (found[key]["loss"], found[key]["digest"]) for key in expected} == expected
    means = {first <= step < last: (found[rank, step]["count"], found[rank, step]["mean"]) for rank, step in expected}
    assert means == {False: (2, 0.5), True: (1, 0.0)}


@pytest.mark.long
def test_a_call_that_needs_all_ranks_waits_for_them(launcher: Launcher) -> None:
    """They are wanted after all: a spare takes the rank, and no rank is excluded in this job any more."""
    job = start(launcher, "--gather-from", "0")
    until(lambda: len(recovered(job)) >= 1, 100, "rank 1 is back")
    (back,) = recovered(job)
    until(lambda: (1, back["resume_step"] + 20) in told(job), 60, "some steps are done together again")
    (refused,) = [event for event in job.events() if event["event"] == "not_excluded"]
    assert (refused["ranks"], refused["reason"]) == ([1], "allgather needs rank 1")
    assert (back["excluded"], back["returned"], back["spare"]) == ([], [1], "node2")
    assert job.status()["another_since_step"] == NO_STEP, "no step was made without it"
    expected, found = data_parallel.by_hand(back["resume_step"] + 20, lambda step: [0, 1]), told(job)
    expected = {key: value for key, value in expected.items() if key in found or key != (1, back["resume_step"] - 1)}
    assert {key: (found[key]["loss"], found[key]["digest"]) for key in expected} == expected
