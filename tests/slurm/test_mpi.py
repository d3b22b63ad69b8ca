"""Replicas by MPI in a Slurm job: pairs are steps of its allocation, and whatever becomes of one, training does not notice."""

from pathlib import Path
from typing import Any

import pytest
from launching import Launcher
from mpi_edges import GROWING, needs_mpi
from slurm_cluster import Cluster, SlurmJob, left_on
from training import finished, hurry

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(420),  # the first test makes the cluster as well
    needs_mpi,
]


def edges(job: SlurmJob, name: str, **fields: str) -> list[dict[str, Any]]:
    return [each for each in job.events() if each["event"] == name and fields.items() <= each.items()]


def edge(job: SlurmJob, name: str, **fields: str) -> dict[str, Any]:
    job.until(lambda: bool(edges(job, name, **fields)), 60, f"{name} {fields}")
    return edges(job, name, **fields)[0]


def of_pairs(cluster: Cluster, node: str) -> list[str]:
    return [
        line for line in cluster.node("pids", node).splitlines() if "deadpool.agent.edges.sidecar" in line and "srun" not in line
    ]


def test_a_pair_is_killed_and_then_a_node(cluster: Cluster, launcher: Launcher, tmp_path: Path) -> None:
    job = cluster.train(tmp_path / "job", "--h2h", "mpi", "--nproc-per-node", "1", script=GROWING)
    job.until_steps(2, ranks=2)
    met = edge(job, "edge_open", node="n1", holder="n2")
    cluster.node("exec", "n1", "kill", "-KILL", str(met["pids"][0]))
    assert "n1->n2 lost at generation 1: " in edge(job, "edge_lost", node="n1")["text"]
    job.until(lambda: len(edges(job, "edge_open", node="n1", holder="n2")) == 2, 60, "n1 and n2 have another pair")
    assert not {"unprotected", "recovered"} & set(job.names())
    cluster.node("kill", "n2")
    edge(job, "edge_open", node="n1", holder="n3")
    job.until(lambda: len(of_pairs(cluster, "n3")) == 2, 60, "no pair is left of edges that are wanted no more")
    (job.folder / "hurry").touch()
    broken = job.finished()

    unbroken = launcher.start("--standalone", "--nnodes", "2", "--summary-json", "summary.json", *GROWING)
    hurry(unbroken)
    broken.assert_same_as(finished(unbroken))
    assert [recovery["spare"] for recovery in broken.summary["recoveries"]] == ["n3"]
    assert not left_on(cluster)
