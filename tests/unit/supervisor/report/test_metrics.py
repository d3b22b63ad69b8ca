"""The metrics say what status says."""

from dataclasses import replace

import pytest
from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, RecoveryRecord
from deadpool.supervisor.report.metrics import families

STATUS = JobStatus(
    job_id="j",
    phase="run",
    generation=3,
    step=41,
    commit_step=40,
    steps_per_s=8.5,
    world_size=4,
    hooked=True,
    exposed_stall_s=0.25,
    unprotected="since step 12: no room",
)


def node(node_id: str, role: str) -> NodeStatus:
    return NodeStatus(
        node_id=node_id,
        index=0,
        role=role,
        host="h",
        heartbeat_age_s=0.5,
        cpu_share=0.1,
        memory_share=0.2,
        shm_free_bytes=1024,
        standins_ready=0,
    )


def recovery(failure_class: str) -> RecoveryRecord:
    return RecoveryRecord(
        generation=2,
        cause="c",
        failure_class=failure_class,
        node="node1",
        ranks=(2, 3),
        spare="",
        resume_step=7,
        steps_reexecuted=1,
        survivors_kept_processes=True,
        phases_s=PhaseTimes(),
        total_s=1.0,
        committed_steps_lost=0,
    )


def text(status: JobStatus) -> list[str]:
    class Fixed(Collector):
        def collect(self) -> list[Metric]:
            return list(families(status))

    registry = CollectorRegistry()
    registry.register(Fixed())
    return generate_latest(registry).decode().splitlines()


def test_what_status_says_is_there() -> None:
    lines = text(STATUS)
    assert 'deadpool_phase{job="j",phase="run"} 1.0' in lines
    assert 'deadpool_commit_step{job="j"} 40.0' in lines
    assert 'deadpool_protected{job="j"} 0.0' in lines
    assert 'deadpool_exposed_stall_seconds_total{job="j"} 0.25' in lines


@pytest.mark.parametrize(("hooked", "unprotected", "value"), [(True, "", 1.0), (True, "no room", 0.0), (False, "", 0.0)])
def test_only_a_hooked_job_is_protected(hooked: bool, unprotected: str, value: float) -> None:
    lines = text(replace(STATUS, hooked=hooked, unprotected=unprotected))
    assert f'deadpool_protected{{job="j"}} {value}' in lines


def test_nodes_and_recoveries_are_counted() -> None:
    nodes = (node("node0", "member"), node("node1", "lost"), node("node2", "member"))
    records = (recovery("permanent"), recovery("transient"), recovery("permanent"))
    lines = text(
        JobStatus(**{name: getattr(STATUS, name) for name in STATUS.__slots__} | {"nodes": nodes, "recoveries": records})
    )
    assert 'deadpool_nodes{job="j",role="member"} 2.0' in lines
    assert 'deadpool_recoveries_total{class="permanent",job="j"} 2.0' in lines
    assert not [line for line in lines if "heartbeat_age" in line and "node1" in line]
