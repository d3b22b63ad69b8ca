"""What a person is shown of a job, and the summary that scripts read."""

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.config import Places
from deadpool.proto.messages import RankProgress
from deadpool.supervisor.report.pulse import Pulse
from deadpool.supervisor.report.status import job_status
from deadpool.supervisor.report.summary import summary


def _heartbeat(
    pulse: Pulse, now_s: float, step: int, *, pid: int = 1000, rank: int = 0, stall_s: float = 0.0, generation: int = 1
) -> messages.Heartbeat:
    progress = RankProgress(rank=rank, pid=pid, step=step, commit_step=step - 1, steps_done=step, exposed_stall_s=stall_s)
    heartbeat = messages.Heartbeat(generation=generation, ranks=(progress,), cpu_share=0.5, standins_ready=1)
    pulse.heard("node0", heartbeat, now_s=now_s)
    return heartbeat


def test_the_step_rate_is_that_of_the_last_seconds() -> None:
    pulse = Pulse()
    assert pulse.steps_per_s() == 0.0
    for second in range(20):
        _heartbeat(pulse, float(second), 100 * second if second < 10 else 1000 + 10 * (second - 10))
    assert pulse.steps_per_s() == pytest.approx(10.0)


def test_the_rate_is_zero_while_steps_are_repeated() -> None:
    pulse = Pulse()
    _heartbeat(pulse, 0.0, 10)
    _heartbeat(pulse, 1.0, 8)
    assert pulse.steps_per_s() == 0.0


def test_stall_is_that_of_the_slowest_rank_over_all_its_processes() -> None:
    pulse = Pulse()
    _heartbeat(pulse, 0.0, 1, pid=1, stall_s=0.25)
    _heartbeat(pulse, 1.0, 2, pid=1, stall_s=0.5)
    _heartbeat(pulse, 2.0, 3, pid=2, stall_s=0.25)
    _heartbeat(pulse, 3.0, 3, rank=1, stall_s=0.6)
    assert pulse.exposed_stall_s() == 0.75


def test_the_age_of_the_newest_commit_is_known_also_after_a_way_back() -> None:
    pulse = Pulse()
    assert pulse.committed_at_s is None
    _heartbeat(pulse, 1.0, 20)
    _heartbeat(pulse, 2.0, 20)
    assert pulse.committed_at_s == 1.0
    _heartbeat(pulse, 3.0, 10, pid=2, generation=2)  # a new process, far back
    assert pulse.committed_at_s == 1.0
    _heartbeat(pulse, 4.0, 11, pid=2, generation=2)
    assert pulse.committed_at_s == 4.0
    _heartbeat(pulse, 5.0, 11, pid=2, generation=2)
    assert pulse.committed_at_s == 4.0


def test_status_of_a_job_with_a_lost_node() -> None:
    scene, pulse = Scene(), Pulse()
    scene.start(commit_step=4)
    pulse.heard("node0", _heartbeat(pulse, 100.0, 5), now_s=100.0)
    scene.lose(1)
    scene.recover(step=5, survivors=[0, 1], joiners=[2, 3])
    scene.bring_up(5)
    status = job_status(scene.state, pulse, now_s=101.5)
    assert (status.phase, status.generation, status.hooked, status.commit_step) == ("run", 2, True, 5)
    assert [(node.node_id, node.role) for node in status.nodes] == [("node0", "member"), ("node1", "lost"), ("node2", "member")]
    assert status.nodes[0].heartbeat_age_s == 1.5
    assert [rank.step for rank in status.nodes[0].ranks] == [5, -1]
    assert [rank.rank for rank in status.nodes[2].ranks] == [2, 3]
    assert len(status.recoveries) == 1


def test_status_says_who_keeps_whose_replicas_and_which_domains_may_be_lost() -> None:
    scene = Scene(
        nnodes=3, nproc_per_node=2, place_replicas=Places.BOTH, topology=(("node0", "r1"), ("h", "r2"), ("node2", "r3"))
    )
    scene.start(commit_step=4)
    status = job_status(scene.state, Pulse(), now_s=101.5)
    assert [node.domain for node in status.nodes] == ["r1", "r2", "r3", "r2"]
    assert [node.keeps for node in status.nodes] == [(4, 5), (0, 1), (2, 3), (0, 1, 2, 3, 4, 5)]
    assert status.domains_lost_max == 1
    scene = Scene()
    scene.start(commit_step=4)
    assert job_status(scene.state, Pulse(), now_s=101.5).domains_lost_max == 0, "nothing is known of any"


def test_of_a_job_whose_agents_have_gone_the_summary_says_as_much() -> None:
    scene, pulse = Scene(), Pulse()
    scene.start(commit_step=4)
    progress = messages.RankProgress(rank=0, pid=1, step=5, commit_step=4, steps_done=5, exposed_stall_s=0.0)
    pulse.heard("node0", messages.Heartbeat(generation=1, ranks=(progress,), until=100), now_s=101.0)
    for rank in range(4):
        scene.exits(rank, 0)
    for node in range(3):
        scene.say(node, messages.Stopped())
        scene.lose(node)
    assert summary(scene.state, pulse)["until"] == 100


def test_summary_has_the_agreed_keys() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=2, rank=rank, step=40))
    for rank in range(4):
        scene.exits(rank, 0)
    content = summary(scene.state, Pulse())
    assert (content["exit_code"], content["steps"], content["generations"], content["world_size"]) == (0, 40, 2, 4)
    assert set(content) == {
        "job_id", "exit_code", "world_size", "steps", "generations", "committed_steps_lost", "exposed_stall_s", "recoveries",
        "goodput", "goodput_spares_charged", "spent_s", "reported", "another_since_step", "excluded", "until",
        "commit_step",
    }  # fmt: skip
    assert content["spent_s"]["recovering"] == pytest.approx(content["recoveries"][0]["total_s"])
    (recovery,) = content["recoveries"]
    assert set(recovery) == {
        "generation", "cause", "class", "node", "ranks", "spare", "moved", "resume_step", "steps_reexecuted",
        "survivors_kept_processes", "phases_s", "total_s", "ended_s", "exposed_s", "excluded", "returned", "groups_kept",
        "groups_opened",
    }  # fmt: skip
    assert set(recovery["phases_s"]) == {"detect", "decide", "quiesce", "plan", "reform", "restore", "first_step"}


def test_status_says_what_a_job_waits_for() -> None:
    scene, pulse = Scene(spares=0), Pulse()

    def waits() -> str:
        return job_status(scene.state, pulse, now_s=scene.now_s).waiting_for

    scene.hello(0)
    assert waits() == "1 more of 2 nodes"
    scene = Scene(spares=0)
    scene.start(commit_step=4)
    assert waits() == ""
    scene.lose(1)
    assert waits() == "a node for ranks 2-3"
    scene.hello(1)
    assert waits() == "ranks 0-3: out of the old generation, or built and rehearsed"
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.prepare(2)
    assert waits() == "rank 3: out of the old generation, or built and rehearsed"


def test_a_recovery_is_placed_in_the_time_of_the_job() -> None:
    scene, pulse = Scene(), Pulse()
    scene.start(commit_step=4)
    scene.wait(60.0)
    scene.heartbeat(step=5, commit_step=4)
    scene.lose(1)
    scene.recover(step=5, survivors=[0, 1], joiners=[2, 3])
    scene.wait(2.0)
    scene.bring_up(5)
    (record,) = job_status(scene.state, pulse, now_s=scene.now_s).recoveries
    assert record.ended_s == pytest.approx(62.0)
