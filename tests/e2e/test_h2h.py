"""Replicas by MPI, and by spares, in whole jobs: whatever becomes of a pair, training does not notice."""

import os
import signal
from typing import Any

import pytest
from launching import Job, Launcher, until
from mpi_edges import GROWING, needs_mpi
from training import finished, hurry

pytestmark = [
    pytest.mark.e2e,
    needs_mpi,
]


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *options, *GROWING)


def edges(job: Job, name: str, node: str) -> list[dict[str, Any]]:
    return [each for each in job.events() if each["event"] == name and each["node"] == node]


def nth_edge(job: Job, name: str, node: str, number: int) -> dict[str, Any]:
    return until(lambda: edges(job, name, node)[number:], 60, f"{name} of {node}, number {number}")[0]


def kill_pairs(job: Job, node: str, times: int) -> None:
    """Kills a process of each pair that carries the node's replicas, once it carries them."""
    for time in range(times):
        met = nth_edge(job, "edge_open", node, time)
        os.kill(met["pids"][time % 2], signal.SIGKILL)
        lost = nth_edge(job, "edge_lost", node, time)
        assert lost["text"].startswith(f"edge {node}->{met['holder']} lost at generation {lost['generation']}: ")
    nth_edge(job, "edge_open", node, times)


def test_a_pair_is_killed_and_then_a_node(launcher: Launcher) -> None:
    unbroken = start(launcher)
    hurry(unbroken)
    reference = finished(unbroken)

    job = start(launcher, "--h2h", "mpi", "--place-replicas", "spares")
    kill_pairs(job, "node0", 1)
    assert not [each for each in job.events() if each["event"] in ("failure", "unprotected")]
    assert job.ask("inject", "kill-node", "1").returncode == 0
    until(lambda: [each for each in job.events() if each["event"] == "recovered"], 60, "the job has recovered")
    nth_edge(job, "edge_open", "node2", 0)
    hurry(job)
    broken = finished(job)
    broken.assert_same_as(reference)
    (recovery,) = broken.summary["recoveries"]
    assert recovery["exposed_s"] > 0
    (chosen,) = [each for each in job.events() if each["event"] == "spare_chosen"]
    assert chosen["reason"] == "node2 has the replicas of this seat's ranks"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_pairs_are_killed_twenty_times(launcher: Launcher) -> None:
    unbroken = start(launcher)
    hurry(unbroken)
    reference = finished(unbroken)

    job = start(launcher, "--h2h", "mpi")
    kill_pairs(job, "node1", 20)
    hurry(job)
    broken = finished(job)
    broken.assert_same_as(reference)
    assert broken.summary["recoveries"] == []
    assert not [each for each in job.events() if each["event"] in ("failure", "unprotected", "generation")][1:]
