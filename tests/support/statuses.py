"""Statuses of jobs for tests of what is shown of them."""

from dataclasses import replace
from typing import Any

from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, RankStatus, RecoveryRecord, SpentTimes

PHASES = PhaseTimes(detect=0.02, quiesce=0.5, reform=0.1, restore=0.05, first_step=0.164)
RECOVERY = RecoveryRecord(
    generation=2, cause="node1 lost: its stream was closed", failure_class="permanent", node="node1", ranks=(2, 3), spare="node2",
    resume_step=15, steps_reexecuted=1, survivors_kept_processes=True, phases_s=PHASES, total_s=0.834, committed_steps_lost=0,
    moved=(2, 3), ended_s=30.0,
)  # fmt: skip


def rank(number: int, **changes: Any) -> RankStatus:
    status = RankStatus(
        rank=number, pid=1000 + number, step=16, commit_step=15, exposed_stall_s=0.0,
        step_s=0.11, wait_s=0.06, rss_bytes=315_000_000,
    )  # fmt: skip
    return replace(status, **changes)


def node(index: int, role: str, *ranks: RankStatus, **changes: Any) -> NodeStatus:
    status = NodeStatus(
        node_id=f"node{index}", index=index, role=role, host="127.0.0.1", heartbeat_age_s=0.4, cpu_share=0.5, memory_share=0.25,
        shm_free_bytes=3_000_000_000, standins_ready=2, ranks=ranks,
    )  # fmt: skip
    return replace(status, **changes)


def job(**changes: Any) -> JobStatus:
    """Returns the status of a job of 2 nodes x 2 ranks that has lost node1 to the spare node2; node3 is another spare."""
    nodes = (node(0, "member", rank(0), rank(1)), node(1, "lost"), node(2, "member", rank(2), rank(3)), node(3, "spare"))
    status = JobStatus(
        job_id="gpt-1", phase="run", generation=2, step=16, commit_step=15, steps_per_s=9.5, world_size=4, hooked=True,
        exposed_stall_s=0.25, recoveries=(RECOVERY,), nodes=nodes, until=100, replicas=1,
        spent_s=SpentTimes(starting=5.0, productive=94.0, recovering=0.8, again=0.2, node_s=300.0),
    )  # fmt: skip
    return replace(status, **changes)


def thousand(**changes: Any) -> JobStatus:
    """Returns the status of a job of 1,000 nodes x 8 ranks and 10 spares: node5 and node77 are lost, node600 is silent, node401
    is in trouble, rank 136 on node17 is slow, the spare node1003 is not ready."""
    special: dict[int, dict[str, Any]] = {
        600: {"heartbeat_age_s": 5.0}, 401: {"troubles": ("shm is full: 1 MiB left",)}, 1003: {"standins_ready": 3},
    }  # fmt: skip
    nodes = []
    for index in range(1010):
        role = "lost" if index in (5, 77) else "spare" if index >= 1000 else "member"
        played = [rank(8 * index + at, wait_s=0.06 - 0.0005 * at) for at in range(8)] if role == "member" else []
        if index == 17:
            played[0] = replace(played[0], wait_s=0.01, slow_times=1.9)
        nodes.append(node(index, role, *played, **({"standins_ready": 8} | special.get(index, {}))))
    return job(world_size=8000, nodes=tuple(nodes), **changes)
