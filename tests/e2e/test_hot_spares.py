"""Ranks that were built and rehearsed a second time, before they are lost: hot stand-ins go on in their place, to the bit."""

from pathlib import Path
from typing import Any

import pytest
from launching import Job, Launcher, until
from training import finished, hurry

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "growing.py")


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, SCRIPT, "--steps", "400", "--step-s", "0.2", "--grows-at", "3", "--grows-by", "64")


def events(job: Job, name: str, count: int = 1) -> list[dict[str, Any]]:
    """Waits until there are so many of that name, and returns them."""

    def found() -> list[dict[str, Any]]:
        return [each for each in job.events() if each["event"] == name]

    return until(lambda: found() if len(found()) >= count else [], 60, f"{count} times {name}")


def test_a_lost_rank_and_a_lost_node_find_their_ranks_hot(launcher: Launcher) -> None:
    unbroken = start(launcher)
    hurry(unbroken)
    reference = finished(unbroken)

    job = start(launcher, "--spare-readiness", "hot", "--hot-standins", "1")
    hot = {(each["node"], tuple(each["ranks"])) for each in events(job, "is_hot", 3)}
    nodes = {node["node_id"]: node for node in job.status()["nodes"]}
    (spare,) = [name for name, node in nodes.items() if node["role"] == "spare"]
    (home,) = [name for name, node in nodes.items() if [each["rank"] for each in node["ranks"]] == [1]]
    assert {(spare, (0,)), (home, (1,))} < hot
    assert nodes[spare]["hot_ranks"] == [0]
    assert until(lambda: {each["node_id"]: each["hot_bytes"] for each in job.status()["nodes"]}[home], 20, "memory said") > 0

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
    broken.assert_same_as(reference)
    assert broken.summary["committed_steps_lost"] == 0
