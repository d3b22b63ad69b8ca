"""Real Slurm: jobs from deploy/slurm lose nodes, cables, time and their batch host, and train as if nothing had happened."""

from pathlib import Path

import pytest
from slurm_cluster import DEPLOY, Cluster, left_on
from training import Training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]  # the first test makes the cluster as well


def slowed(*steps: int) -> tuple[str, ...]:
    """Ten steps from each of these take longer: there is time to do something to the job."""
    return tuple(word for step in steps for word in ("--inject", f"slow-rank:0@{step}"))


def recoveries(training: Training) -> list[tuple[list[int], str]]:
    return [(recovery["ranks"], recovery["spare"]) for recovery in training.summary["recoveries"]]


@pytest.mark.long
def test_a_node_is_killed(cluster: Cluster, unbroken_training: Training, tmp_path: Path) -> None:
    job = cluster.train(tmp_path / "job", *slowed(6))
    job.until_steps(8)
    cluster.node("kill", "n2")
    training = job.finished()
    training.assert_same_as(unbroken_training)
    assert recoveries(training) == [([2, 3], "n3")]
    assert training.summary["committed_steps_lost"] == 0
    assert {path.name for path in job.log_dir.iterdir()} >= {"n1", "n2", "n3", "events.jsonl"}
    assert not left_on(cluster)


@pytest.mark.long
def test_a_cable_is_cut_and_healed(cluster: Cluster, unbroken_training: Training, tmp_path: Path) -> None:
    """The node that was cut off finds its generation over, and is a spare again."""
    job = cluster.train(tmp_path / "job", *slowed(6, 16, 26))
    job.until_steps(8)
    cluster.node("cut", "n2")
    try:
        job.until_event("recovered")
    finally:
        cluster.node("heal", "n2")
    job.until_event("node_joined", times=4)
    training = job.finished()
    training.assert_same_as(unbroken_training)
    assert recoveries(training) == [([2, 3], "n3")]
    assert not left_on(cluster)


@pytest.mark.long
def test_a_drained_node_is_left_before_anything_fails(cluster: Cluster, unbroken_training: Training, tmp_path: Path) -> None:
    job = cluster.train(tmp_path / "job", "--slurm-poll", "1", *slowed(6, 16, 26))
    job.until_steps(8)
    cluster.run("scontrol", "update", "node=n2", "state=drain", "reason=bad fan")
    training = job.finished()
    training.assert_same_as(unbroken_training)
    (swap,) = training.summary["recoveries"]
    assert (swap["class"], swap["ranks"], swap["spare"]) == ("planned", [2, 3], "n3")
    assert "Slurm says that n2 is MIXED+DRAIN (bad fan)" in job.out or "ALLOCATED+DRAIN (bad fan)" in job.out
    assert not left_on(cluster)


@pytest.mark.long
def test_scancel_leaves_a_checkpoint_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.train(tmp_path / "job", *slowed(6, 16, 26))
    job.until_steps(8)
    cluster.run("scancel", job.job_id)
    job.until_said("ended with exit code 143")  # for Slurm it is CANCELLED from the start
    (ended,) = [event for event in job.events() if event["event"] == "job_ended"]
    assert (ended["exit_code"], ended["reason"]) == (143, "SIGTERM received")
    assert list((job.folder / f"checkpoints-{job.job_id}").glob("step-*/deadpool.json"))
    assert not left_on(cluster)


@pytest.mark.long
def test_the_time_is_up_and_the_requeued_job_resumes(cluster: Cluster, unbroken_training: Training, tmp_path: Path) -> None:
    """What --signal=B:USR1@... sends; Slurm would wait two minutes before it starts a requeued job again."""
    job = cluster.train(tmp_path / "job", *slowed(6, 16))
    job.until_steps(8)
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    job.until_said("ended with exit code 138")
    job.until(lambda: (job.field("Restarts"), job.field("JobState")) == ("1", "PENDING"), 90, "it is requeued")
    before = set(job.lines())
    cluster.run("scontrol", "update", f"job={job.job_id}", "StartTime=now")
    training = job.finished()
    assert "checkpoint_found" in job.names()
    expected = set(unbroken_training.losses.read_text().splitlines())
    assert before <= expected
    assert set(job.lines()) <= expected
    assert before | set(job.lines()) == expected
    assert sorted(training.digests.read_text().splitlines()) == sorted(unbroken_training.digests.read_text().splitlines())
    assert not left_on(cluster)


@pytest.mark.long
def test_a_node_of_another_allocation_becomes_a_spare(cluster: Cluster, unbroken_training: Training, tmp_path: Path) -> None:
    job = cluster.train(tmp_path / "job", "--spares", "0", *slowed(6, 16, 26), options=("--nodes=2",))
    job.until_steps(4)
    spare = cluster.submit(tmp_path / "spare", DEPLOY / "add-spare.sbatch", str(job.shared), options=("--time=10",))
    job.until_event("node_joined", times=3)
    cluster.node("kill", "n2")
    training = job.finished()
    training.assert_same_as(unbroken_training)
    assert recoveries(training) == [([2, 3], "n3")]
    assert spare.end()[0] == "COMPLETED", spare.out
    assert not left_on(cluster)


@pytest.mark.long
def test_the_batch_host_is_killed(cluster: Cluster, unbroken_training: Training, tmp_path: Path) -> None:
    """With it go launcher, srun and supervisor: another node has the next one, and ends the allocation when all is done."""
    job = cluster.train(tmp_path / "job", *slowed(6, 16))
    job.until_steps(8)
    cluster.node("kill", "n1")
    assert job.end()[0] == "CANCELLED"
    training = Training(job.folder / "losses", job.folder / "digests", {})
    training.assert_same_as(unbroken_training)
    assert job.names().count("recovered") == 1
    assert job.names().count("job_ended") == 1
    assert not left_on(cluster)
