"""Real Slurm: jobs from deploy/slurm lose nodes, cables, time and their batch host, and train as if nothing had happened."""

import json
import re
import sys
from pathlib import Path

import pytest
from slurm_cluster import DEPLOY, SLOW_TRAINING, Cluster, SlurmJob, left_on
from training import Training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]  # the first test makes the cluster as well


def slowed(*steps: int) -> tuple[str, ...]:
    """Ten steps from each of these take longer: there is time to do something to the job."""
    return tuple(word for step in steps for word in ("--inject", f"slow-rank:0@{step}"))


# A task's part of its node, and a job whose ranks, and the tasks of a plain srun, say theirs.
SHOW = """
import os
print(os.uname().nodename, sorted(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES"))
"""
BATCH = """#!/bin/bash
srun --ntasks-per-node=1 --output=plain-%t python show.py
exec deadpool-launch --nproc-per-node 1 --spares 0 show.py
"""


def recoveries(training: Training) -> list[tuple[list[int], str]]:
    return [(recovery["ranks"], recovery["spare"]) for recovery in training.summary["recoveries"]]


def said_by_ranks(output: str) -> list[str]:
    return sorted(line[len("[rank 0] ") :] for line in output.splitlines() if line.startswith("[rank "))


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
def test_slurm_says_that_a_node_drains_and_that_another_is_down(
    cluster: Cluster, unbroken_training: Training, tmp_path: Path
) -> None:
    """The first is left before anything fails. The second is silent, for which nobody would give it up so soon."""
    job = cluster.train(
        tmp_path / "job", "--slurm-poll", "1", "--heartbeat-timeout", "60", "--hang-timeout", "90", *slowed(6, 16, 26)
    )
    job.until_steps(8)
    cluster.run("scontrol", "update", "node=n2", "state=drain", "reason=bad fan")
    job.until_event("recovered")
    cluster.run("scontrol", "update", "node=n2", "state=resume")
    job.until_event("drain_undone")
    cluster.node("cut", "n3")
    try:
        cluster.run("scontrol", "update", "node=n3", "state=down", "reason=no word")
        job.until_event("recovered", times=2)
    finally:
        cluster.node("heal", "n3")
    training = job.finished()
    training.assert_same_as(unbroken_training)
    swap, loss = training.summary["recoveries"]
    assert (swap["class"], swap["ranks"], swap["spare"]) == ("planned", [2, 3], "n3")
    assert (loss["class"], loss["ranks"], loss["spare"]) == ("permanent", [2, 3], "n2")
    assert "Slurm says that n2 is MIXED+DRAIN (bad fan)" in job.out or "ALLOCATED+DRAIN (bad fan)" in job.out
    assert "Slurm says that n3 is DOWN" in loss["cause"]
    cluster.node(
        "kill", "n3"
    )  # when it was back, Slurm has killed all that it had there: what lies there waits for its next agent
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


def test_a_killed_launcher_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm kills the tasks with it: no process of ours is left to clear up."""
    job = cluster.train(tmp_path / "job", script=SLOW_TRAINING)
    job.until_steps(2)
    cluster.run("scancel", "--batch", "--signal=KILL", job.job_id)
    assert job.end()[0] == "FAILED"
    job.until(lambda: not left_on(cluster), 120, "nothing is left in /dev/shm")


@pytest.mark.long
def test_a_signal_to_all_tasks_is_taken_for_the_launchers(cluster: Cluster, tmp_path: Path) -> None:
    """What --signal=USR1@..., without B:, sends."""
    job = cluster.train(tmp_path / "job", *slowed(6, 16, 26))
    job.until_steps(8)
    cluster.run("scancel", "--signal=USR1", job.job_id)
    job.until_said("ended with exit code 138")
    job.until(lambda: (job.field("Restarts"), job.field("JobState")) == ("1", "PENDING"), 90, "it is requeued")
    assert re.search(r"deadpool: SIGUSR1 (came to n\d|received): stopping", job.out), job.out
    assert list((job.folder / f"checkpoints-{job.job_id}").glob("step-*/deadpool.json"))
    assert not left_on(cluster)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_time_is_up_then_the_job_is_preempted_and_each_time_it_resumes(
    cluster: Cluster, unbroken_training: Training, tmp_path: Path
) -> None:
    """What --signal=B:USR1@... sends; then a job of a higher partition takes the nodes."""
    job = cluster.train(tmp_path / "job", *slowed(6, 16, 26))
    job.until_steps(8)
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    job.until_said("ended with exit code 138")
    job.until(lambda: (job.field("Restarts"), job.field("JobState")) == ("1", "PENDING"), 90, "it is requeued")
    done = set(job.lines())
    job.run_now()
    job.until(lambda: len(set(job.lines()) - done) >= 4 * 3, 150, "three more steps")
    urgent = cluster.run(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=5", "--exclusive", "--output=/dev/null", "--wrap=true"
    )
    job.until_said("ended with exit code 143")
    job.until(lambda: (job.field("Restarts"), job.field("JobState")) == ("2", "PENDING"), 90, "it is requeued again")
    done |= set(job.lines())
    SlurmJob(cluster, urgent.strip(), tmp_path).end()
    job.run_now()
    training = job.finished()
    assert "checkpoint_found" in job.names()
    expected = set(unbroken_training.losses.read_text().splitlines())
    assert len(done) < len(expected)
    assert done | set(job.lines()) == expected
    assert sorted(training.digests.read_text().splitlines()) == sorted(unbroken_training.digests.read_text().splitlines())
    assert not left_on(cluster)


def test_nodes_of_other_allocations_become_spares(cluster: Cluster, unbroken_training: Training, tmp_path: Path) -> None:
    job = cluster.train(tmp_path / "job", "--spares", "0", nodes=2, script=SLOW_TRAINING)
    job.until_steps(2)
    options = ("--time=10", "--array=1-2")
    spares = cluster.submit(tmp_path / "spare", DEPLOY / "add-spare.sbatch", str(job.shared), options=options)
    job.until_event("node_joined", times=4)
    cluster.node("kill", "n2")
    (job.folder / "hurry").touch()
    training = job.finished()
    training.assert_same_as(unbroken_training)
    ((ranks, spare),) = recoveries(training)
    assert ranks == [2, 3]
    assert spare in ("n3", "n4", "n5")
    assert spares.end()[0] == "COMPLETED", spares.out
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


def test_doctor_knows_what_slurm_says_of_itself_and_of_the_allocation(cluster: Cluster, tmp_path: Path) -> None:
    doctor = ("deadpool", "doctor", "--json", "--python", sys.executable)
    (tmp_path / "batch.sh").write_text("#!/bin/bash\n#SBATCH --no-kill\nexec " + " ".join(doctor))
    job = cluster.submit(tmp_path, tmp_path / "batch.sh", options=("--output=batch-%j.out", "--time=5"))
    assert job.end() == ("COMPLETED", "0:0"), job.out
    for answer, no_kill in ((job.out, "ok"), (cluster.run("salloc", "--no-kill", *doctor), "warn")):
        levels = {each["check"]: each["level"] for each in json.loads(answer)}
        assert (levels["KillOnBadExit"], levels["SlurmdTimeout"], levels["--no-kill"]) == ("ok", "warn", no_kill)


def test_ranks_have_what_srun_gives_a_task_and_nodes_that_differ_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    for name, text in {"show.py": SHOW, "batch.sh": BATCH}.items():
        (tmp_path / name).write_text(text)
    parts = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gres=gpu:1", "--time=5")
    job = cluster.submit(tmp_path, tmp_path / "batch.sh", options=parts)
    assert job.end() == ("COMPLETED", "0:0"), job.out
    plain = [(tmp_path / f"plain-{task}").read_text().strip() for task in range(2)]
    assert sorted(plain) == ["n1 [0] 0", "n2 [0] 0"]
    assert said_by_ranks(job.out) == sorted(plain)
    interactive = ("--nodes=2", "--", "--spares=0", "--nproc-per-node=2", "show.py")
    assert said_by_ranks(cluster.run(str(DEPLOY / "interactive.sh"), *interactive, cwd=tmp_path)) == [
        f"{node} [0, 1] None" for node in ("n1", "n1", "n2", "n2")
    ]
    mixed = cluster.train(tmp_path / "mixed", nodes=5, options=("--gres=gpu:1",))
    assert mixed.end() == ("FAILED", "2:0"), mixed.out
    assert mixed.out.startswith(f"deadpool: Slurm job {mixed.job_id}: the nodes have different GPUs"), mixed.out
    assert mixed.out.count("\n") == 1
    assert not (mixed.folder / "logs").exists()
