"""The main job: ranks and nodes die in the middle of a step, and the training is the unbroken one, bit for bit."""

import itertools
import json
from importlib.util import find_spec

import pytest
from launching import Job, Launcher, until
from training import Training, finished, hurry, start

pytestmark = pytest.mark.e2e

KILL_BOTH = ("--inject", "kill-node:0@8", "--inject", "kill-rank:1@16")
ON_SPARES = ("--place-replicas", "spares")
RELAY_EVENTS = ("relay_opened", "relay_closed", "node_lost")
IN_FIRST_STEPS = ("--inject", "kill-rank:3@0", "--inject", "kill-node:0@1")


@pytest.mark.parametrize(
    ("parallel", "inject", "classes"),
    [
        ("zero", KILL_BOTH, ["permanent", "transient"]),
        ("fsdp", (*KILL_BOTH, *ON_SPARES), ["permanent", "transient"]),
        pytest.param("zero", ("--inject", "hang-rank:2@8", "--hang-timeout", "8"), ["transient"], marks=pytest.mark.long),
    ],
    ids=["zero-both", "fsdp-both-on-spares", "zero-hang"],
)
def test_the_training_is_the_unbroken_one(
    launcher: Launcher, reference: Training, parallel: str, inject: tuple[str, ...], classes: list[str]
) -> None:
    job = start(launcher, parallel, *inject)
    broken = finished(job)
    broken.assert_same_as(reference)
    recoveries = broken.summary["recoveries"]
    assert [recovery["class"] for recovery in recoveries] == classes
    assert broken.summary["committed_steps_lost"] == 0
    assert all(recovery["survivors_kept_processes"] for recovery in recoveries)
    assert all(recovery["steps_reexecuted"] <= 2 for recovery in recoveries)  # 1 unless the strike came before the commit
    if ON_SPARES[0] in inject:  # the spare has the shards of the node whose place it takes, and tells when they are safe again
        plan = next(event for event in job.events() if event["event"] == "plan")
        assert plan["sources"]["replica_at_home"] == 2
        assert recoveries[0]["exposed_s"] > 0


def test_where_every_third_state_is_kept(launcher: Launcher, reference: Training) -> None:
    """A failure takes all ranks back to the newest of them, and what follows is the unbroken training."""
    broken = finished(start(launcher, "zero", "--snapshot-every", "3", *KILL_BOTH))
    broken.assert_same_as(reference)
    recoveries = broken.summary["recoveries"]
    assert [recovery["resume_step"] % 3 for recovery in recoveries] == [0, 0]
    assert all(recovery["steps_reexecuted"] <= 6 for recovery in recoveries)  # 3, and 3 more where a commit was not known yet
    assert broken.summary["committed_steps_lost"] == 0


def test_failures_in_the_first_steps(launcher: Launcher, reference: Training) -> None:
    """Before anything is done all start from scratch; a failure that comes a moment later finds a state to go back to."""
    broken = finished(start(launcher, "zero", *IN_FIRST_STEPS))
    broken.assert_same_as(reference)
    recoveries = broken.summary["recoveries"]
    assert "permanent" in [recovery["class"] for recovery in recoveries]
    for recovery in recoveries:
        assert recovery["survivors_kept_processes"] == (recovery["resume_step"] > 0), recovery
    assert broken.summary["committed_steps_lost"] == 0


@pytest.mark.long
def test_a_failure_asked_for_while_the_job_runs(launcher: Launcher) -> None:
    """Status, inject, events and stop as a person would use them, on a job that would run for long."""
    job = start(launcher, "zero", steps=100_000)
    until(lambda: len(lines(job)) > 20, 60, "some steps are done")
    status = job.status()
    assert status["phase"] == "run"
    assert {node["role"] for node in status["nodes"]} == {"member", "spare"}
    assert job.ask("inject", "kill-rank", "2").returncode == 0
    until(lambda: "recovered" in [event["event"] for event in job.events()], 60, "the rank is back")
    names = [event["event"] for event in job.events()]
    assert names.index("injection") < names.index("recovered"), names
    assert job.ask("stop").returncode == 0
    assert job.wait().exit_code == 143
    assert [recovery["ranks"] for recovery in json.loads((job.folder / "summary.json").read_text())["recoveries"]] == [[2]]


@pytest.mark.parametrize("parallel", ["ddp"])
def test_two_nodes_that_held_the_same_are_lost_together(launcher: Launcher, reference: Training, parallel: str) -> None:
    """There were two copies of everything, on these nodes. With two replicas a spare has what both held."""
    both = ("--inject", "kill-node:0@8", "--inject", "kill-node:1@8")
    broken = finished(start(launcher, parallel, "--spares", "3", "--replicas", "2", *both))
    broken.assert_same_as(reference)
    assert broken.summary["committed_steps_lost"] == 0
    assert sum(recovery["steps_reexecuted"] for recovery in broken.summary["recoveries"]) <= 4


def test_a_drained_node_gives_its_ranks_to_the_spare(launcher: Launcher, reference: Training) -> None:
    """Nobody failed: it is a planned swap, and only the step that was under way is done again."""
    job = start(launcher, "zero", slowly=True)
    until(lambda: len(lines(job)) > 5, 60, "some steps are done")
    drained = job.ask("drain", "node1", "--reason", "repair")
    assert drained.returncode == 0, drained.stderr
    assert "node1 is drained: rank 2, 3 now on node2" in drained.stderr
    hurry(job)
    moved = finished(job)
    moved.assert_same_as(reference)
    (recovery,) = moved.summary["recoveries"]
    assert (recovery["class"], recovery["ranks"], recovery["spare"]) == ("planned", [2, 3], "node2")
    assert recovery["survivors_kept_processes"]
    assert recovery["steps_reexecuted"] <= 2  # the one that was under way; where a rank was ahead of the others, its next one
    assert moved.summary["committed_steps_lost"] == 0


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["zero"])
def test_a_frozen_node_is_replaced_and_comes_back_as_a_spare(launcher: Launcher, reference: Training, parallel: str) -> None:
    """Frozen: no connection breaks, only silence tells. Thawed: its ranks are of a generation that is over."""
    frozen = ("--heartbeat-timeout", "1.5", "--inject", "freeze-node:1@8", "--inject", "kill-node:0@20")
    job = start(launcher, parallel, *frozen)
    until(lambda: "waiting_for_node" in [event["event"] for event in job.events()], 60, "both are lost, the one spare is used")
    assert job.ask("inject", "thaw-node", "1").returncode == 0
    broken = finished(job)
    broken.assert_same_as(reference)
    first, second = broken.summary["recoveries"]
    assert "silent" in first["cause"]
    assert (first["spare"], second["spare"]) == ("node2", "node1")
    assert broken.summary["committed_steps_lost"] == 0
    print(f"frozen node replaced in {first['total_s']:.2f} s: {first['phases_s']}")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kill-node:1@8", "kill-rank:2@8"])
def test_where_all_restart_they_go_on_from_the_hosts_memory(launcher: Launcher, reference: Training, kind: str) -> None:
    broken = finished(start(launcher, "zero", "--on-loss", "restart", "--inject", kind))
    broken.assert_same_as(reference)
    (recovery,) = broken.summary["recoveries"]
    assert not recovery["survivors_kept_processes"]
    assert recovery["steps_reexecuted"] <= 2
    assert broken.summary["committed_steps_lost"] == 0


def lines(job: Job) -> list[str]:
    path = job.folder / "losses"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.skipif(find_spec("cryptography") is None, reason="--tls needs the extra tls")
def test_the_node_of_a_relay_is_killed(launcher: Launcher, reference: Training) -> None:
    """The others speak for themselves then, all by TLS, and the training is the unbroken one."""
    job = start(launcher, "zero", "--tls", "--relay-above", "2", "--inject", "kill-node:0@8")
    broken = finished(job)
    broken.assert_same_as(reference)
    assert [recovery["class"] for recovery in broken.summary["recoveries"]] == ["permanent"]
    events = list(itertools.takewhile(lambda each: each["event"] != "job_ended", job.events()))
    opened, closed, lost = ([each for each in events if each["event"] == name] for name in RELAY_EVENTS)
    assert [each["node"] for each in (opened[0], closed[0], *lost)] == ["node0"] * 3, "\n".join(map(str, [*closed, *lost]))
    assert closed[0]["agents"] == 2
