"""`deadpool drain`: asks when the job can do it, and waits until nothing depends on the node."""

from collections.abc import Sequence

import pytest

from deadpool.cli.commands.drain import drain_node
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, RecoveryRecord

MOVED = RecoveryRecord(
    generation=2, cause="node1 is drained", failure_class="planned", node="node1", ranks=(2, 3), spare="node2", resume_step=9,
    steps_reexecuted=1, survivors_kept_processes=True, phases_s=PhaseTimes(), total_s=0.5, committed_steps_lost=0,
)  # fmt: skip


def status(phase: str, *, role: str = "member", generation: int = 1, commit_step: int = 8, moved: bool = False) -> JobStatus:
    node = NodeStatus(
        node_id="node1", index=1, role=role, host="h", heartbeat_age_s=0.0, cpu_share=0.0, memory_share=0.0, shm_free_bytes=0,
        standins_ready=0,
    )  # fmt: skip
    return JobStatus(
        job_id="j", phase=phase, generation=generation, step=commit_step + 1, commit_step=commit_step, steps_per_s=1.0,
        world_size=4, hooked=True, exposed_stall_s=0.0, nodes=(node,), recoveries=(MOVED,) if moved else (),
    )  # fmt: skip


class FakeJob:
    def __init__(self, statuses: Sequence[JobStatus]) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[str, int]] = []  # (node, how many looks were left)

    def status(self) -> JobStatus:
        return self.statuses.pop(0)

    def drain(self, node: str, reason: str) -> None:
        self.asked.append((node, len(self.statuses)))


def told(node: str, *statuses: JobStatus) -> tuple[str, FakeJob]:
    job = FakeJob(statuses)
    return drain_node(job, node, "repair", pause=lambda: None), job


def test_it_waits_for_a_commit_of_the_new_generation() -> None:
    line, job = told(
        "node1",
        status("recover"),
        status("run"),
        status("run", role="draining"),
        status("recover", role="drained", generation=2),
        status("run", role="drained", generation=2, commit_step=9, moved=True),
        status("run", role="drained", generation=2, commit_step=10, moved=True),
    )
    assert line == "node1 is drained: rank 2, 3 now on node2, resumed at step 9; it can be switched off"
    assert job.asked == [("node1", 4)]
    assert not job.statuses


def test_a_spare_is_free_at_once_and_an_index_is_a_name() -> None:
    assert told("1", status("run"), status("run", role="drained"))[0] == "node1 is drained: it can be switched off"


def test_what_else_may_come_of_it() -> None:
    with pytest.raises(ConfigError, match="no node 'node7'"):
        told("node7", status("run"))
    with pytest.raises(DeadpoolError, match="keeps its ranks"):
        told("node1", status("run"), status("recover", role="drained", generation=2), status("run", generation=3))
    assert told("node1", status("run"), status("recover", role="lost", generation=2))[0] == "node1 is gone"
