"""Ranks that were built and rehearsed a second time, before they are lost: hot stand-ins go on in their place, to the bit."""

import re
from pathlib import Path
from typing import Any

import pytest
from launching import Job, Launcher, launching, until
from training import Training, finished, hurry

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "growing.py")


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    steps = ("--steps", "400", "--step-s", "0.2", "--slower-from", "100")  # enough of them for whatever the test does meanwhile
    return launcher.start(*nodes, *options, SCRIPT, *steps, "--grows-at", "3", "--grows-by", "64")


def events(job: Job, name: str, count: int = 1) -> list[dict[str, Any]]:
    """Waits until there are so many of that name, and returns them."""

    def found() -> list[dict[str, Any]]:
        return [each for each in job.events() if each["event"] == name]

    return until(lambda: found() if len(found()) >= count else [], 60, f"{count} times {name}")


@pytest.fixture(scope="module")
def unbroken_one(tmp_path_factory: pytest.TempPathFactory) -> Training:
    with launching(tmp_path_factory.mktemp("unbroken")) as launcher:
        job = start(launcher)
        hurry(job)
        return finished(job)


def test_a_lost_rank_and_a_lost_node_find_their_ranks_hot(launcher: Launcher, unbroken_one: Training) -> None:
    job = start(launcher, "--spare-readiness", "hot", "--hot-standins", "1")
    hot = {(each["node"], tuple(each["ranks"])) for each in events(job, "is_hot", 3)}
    nodes = {node["node_id"]: node for node in job.status()["nodes"]}
    (spare,) = [name for name, node in nodes.items() if node["role"] == "spare"]
    (home,) = [name for name, node in nodes.items() if [each["rank"] for each in node["ranks"]] == [1]]
    assert {(spare, (0,)), (home, (1,))} < hot
    assert nodes[spare]["hot_ranks"] == [0]
    assert until(lambda: {each["node_id"]: each["hot_bytes"] for each in job.status()["nodes"]}[home], 60, "memory said") > 0

    assert job.ask("inject", "kill-rank", "1").returncode == 0
    (lost_rank,) = events(job, "recovered")
    assert lost_rank["ranks"] == [1]
    assert not lost_rank["spare"]
    events(job, "is_hot", 4)  # another stand-in, for the next time

    assert job.ask("inject", "kill-node", "0").returncode == 0
    assert events(job, "recovered", 2)[1]["spare"] == spare
    assert events(job, "spare_chosen")[0]["reason"] == f"{spare} is hot for this seat"
    hurry(job)
    broken = finished(job)
    broken.assert_same_as(unbroken_one)
    assert broken.summary["committed_steps_lost"] == 0


def test_another_node_is_lost_and_the_same_process_begins_again_as_its_rank(launcher: Launcher, unbroken_one: Training) -> None:
    """The script is a function that deadpool.main calls."""
    job = start(launcher, "--spare-readiness", "hot")
    (hot,) = events(job, "is_hot")
    assert hot["ranks"] == [0]
    assert job.ask("inject", "kill-node", "1").returncode == 0
    (recovered,) = events(job, "recovered")
    assert (recovered["spare"], recovered["ranks"]) == (hot["node"], [1])
    hurry(job)
    finished(job).assert_same_as(unbroken_one)
    (log,) = (job.log_dir / hot["node"]).glob("rank-1-gen*.log")
    built = re.findall(r"rank (\d) is built by process (\d+)", log.read_text())
    assert [rank for rank, _ in built] == ["0", "1"]
    assert len({pid for _, pid in built}) == 1
