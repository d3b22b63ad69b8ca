"""The kinds of failure that memory survives, in a few jobs that end as the unbroken one; what it cannot survive ends clearly."""

import contextlib
import os
from operator import sub
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import Job, Launcher, until
from training import Training, finished, start

pytestmark = pytest.mark.e2e


def inject(*texts: str) -> tuple[str, ...]:
    return tuple(word for text in texts for word in ("--inject", text))


def agent_of(job: Job, node: str) -> psutil.Process:
    """Returns the process with which the node ends."""
    found = []
    for pid in job.pids():
        with contextlib.suppress(psutil.NoSuchProcess):  # others of the job come and go
            process = psutil.Process(pid)
            found += [process] if {"deadpool.agent.main", node} <= {*process.cmdline()} else []
    (agent,) = found
    return agent


def test_errors_broken_connections_and_a_frozen_node(launcher: Launcher, reference: Training) -> None:
    faults = inject("oom-rank:1@4", "lose-network-briefly:2@12", "raise-rank:3@20", "freeze-node:0@28")
    job = start(launcher, "zero", *faults)
    broken = finished(job)
    broken.assert_same_as(reference)
    recoveries = broken.summary["recoveries"]
    assert [recovery["class"] for recovery in recoveries] == ["transient", "transient", "transient", "permanent"]
    assert [recovery["ranks"] for recovery in recoveries] == [[1], [], [3], [0, 1]]
    assert broken.summary["committed_steps_lost"] == 0


def test_orphans_a_lost_spare_and_a_stopped_rank(launcher: Launcher, reference: Training) -> None:
    """Orphans of a lost agent must not train on; a spare is missed by nobody; a stopped process is found by its steps."""
    faults = inject("kill-agent:1@6", "kill-spare:0@12", "freeze-rank:1@20")
    job = start(launcher, "zero", "--spares", "2", "--hang-timeout", "8", *faults)
    broken = finished(job)
    broken.assert_same_as(reference)
    assert [(recovery["ranks"], recovery["class"]) for recovery in broken.summary["recoveries"]] == [
        ([2, 3], "permanent"),
        ([1], "transient"),
    ]
    lost = {event["node"] for event in job.events() if event["event"] == "node_lost" and event["generation"] < 3}
    assert lost in ({"node1", "node3"}, {"node1", "node2"})  # the second where a busy machine kills the spare first
    (hang,) = [event for event in job.events() if event["event"] == "hang"]
    assert (hang["rank"], hang["stopped"]) == (1, True)


def test_bad_copies_are_passed_over_and_reported(launcher: Launcher, reference: Training) -> None:
    """Rank 1's own snapshot is bad: its replica is used. Later rank 3's replicas are bad, and the node of rank 3 dies after them.

    By then both of its replicas are good again: an injection waits for a commit, five steps at most (agent/injections.py).
    """
    stopped = "freeze-rank:1@8"  # before its next snapshot, which would be good
    faults = inject(stopped, "corrupt-snapshot:1@8", "kill-rank:1@8", "corrupt-replica:3@14", "kill-node:1@28")
    job = start(launcher, "zero", *faults)
    broken = finished(job)
    broken.assert_same_as(reference)
    bad = [(event["kind"], event["rank"]) for event in job.events() if event["event"] == "bad_copy"]
    assert ("snapshot", 1) in bad, bad
    assert broken.summary["committed_steps_lost"] == 0


def test_owner_and_holder_lost_at_once_end_the_job_with_the_ranks_whose_state_is_gone(launcher: Launcher) -> None:
    """A spare for each is there, but nothing to restore from."""
    job = start(launcher, "zero", "--spares", "2", "--heartbeat-interval", "0.2", steps=100_000)
    until(lambda: any(event["event"] == "hooked" for event in job.events()), 60, "a rank has joined")
    until(lambda: job.status()["commit_step"] >= 5, 60, "the supervisor has heard of a commit")
    agents = [agent_of(job, node) for node in ("node0", "node1")]
    for agent in agents:  # not by injection: the second one could come when all has replicas on the spare again
        agent.kill()
    outcome = job.wait()
    assert outcome.exit_code == 1
    assert "was committed, but no rank holds any state: gone is that of rank 0, 1, 2, 3" in outcome.err, outcome.err


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_node_that_is_cut_off_is_replaced_and_comes_back_as_a_spare(launcher: Launcher, reference: Training) -> None:
    job = start(launcher, "zero", "--netns", *inject("partition-node:1@8", "heal-node:1@16"))
    broken = finished(job)
    broken.assert_same_as(reference)
    assert [recovery["ranks"] for recovery in broken.summary["recoveries"]] == [[2, 3]]
    assert broken.summary["recoveries"][0]["survivors_kept_processes"]
    assert not [name for name in os.listdir("/sys/class/net") if name.startswith(f"dp{job.process.pid}")]


@pytest.mark.long
def test_no_recovery_leaves_anything_behind(launcher: Launcher) -> None:
    """Ten recoveries: agents and surviving ranks hold no more descriptors, threads and processes than after the second."""
    rules = launcher.folder / "rules.toml"
    rules.write_text('[[rule]]\nname = "too-often"\nclass = "permanent"\nevent = "signal"\nfailures_on_node = 99\n')
    faults = inject(*(f"kill-rank:3@{step}" for step in range(6, 56, 5)))
    job = start(launcher, "zero", *faults, "--failure-rules", str(rules), steps=160)

    def recoveries() -> int:
        return sum(event["event"] == "recovered" for event in job.events())

    until(lambda: recoveries() >= 2, 150, "two recoveries")
    before, files = held(job), in_shm(job)
    until(lambda: recoveries() >= 10, 120, "ten recoveries")
    assert len(in_shm(job)) <= len(files), (files, in_shm(job))
    until(lambda: not grown(before, held(job)), 60, f"what is held is as before: {grown(before, held(job))}")
    finished(job)


def in_shm(job: Job) -> list[Path]:
    return list(Path("/dev/shm").glob(f"deadpool-{job.job_id}-*/*"))


def held(job: Job) -> dict[int, tuple[int, int]]:
    """Returns (descriptors, threads) of each process of the job."""
    found = {}
    for pid in job.pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
    return found


def grown(before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]) -> dict[int, Any]:
    """Returns what has more than before: eight recoveries that leave one thing each stand out from what comes and goes."""
    more = {pid: (before[pid], now[pid]) for pid in before.keys() & now.keys() if max(map(sub, now[pid], before[pid])) > 7}
    return more | ({0: (len(before), len(now))} if len(now) > len(before) + 2 else {})
