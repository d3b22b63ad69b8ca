"""The metrics say what status says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, RecoveryRecord, SpentTimes
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import LineFile
from deadpool.supervisor.model.commands import Note
from deadpool.supervisor.report.measures import JobMeasures
from deadpool.supervisor.report.metrics import exposition, targets

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


def measures(status: JobStatus, **fields: Any) -> JobMeasures:
    return JobMeasures(**{"status": status, "spares": 1, "seats": 2, "events": {}, "commit_age_s": 1.5, **fields})


def text(status: JobStatus, **fields: Any) -> list[str]:
    return exposition(measures(status, **fields)).decode().splitlines()


def test_what_status_says_is_there() -> None:
    lines = text(STATUS)
    assert 'deadpool_phase{job_id="j",phase="run"} 1.0' in lines
    assert 'deadpool_phase{job_id="j",phase="recover"} 0.0' in lines
    assert 'deadpool_commit_step{job_id="j"} 40.0' in lines
    assert 'deadpool_replication_lag_steps{job_id="j"} 1.0' in lines
    assert 'deadpool_commit_age_seconds{job_id="j"} 1.5' in lines
    assert 'deadpool_protected{job_id="j"} 0.0' in lines
    assert 'deadpool_exposed_stall_seconds_total{job_id="j"} 0.25' in lines


def test_before_the_first_commit_nothing_says_how_old_it_is() -> None:
    assert not [line for line in text(STATUS, commit_age_s=None) if line.startswith("deadpool_commit_age")]


@pytest.mark.parametrize(("hooked", "unprotected", "value"), [(True, "", 1.0), (True, "no room", 0.0), (False, "", 0.0)])
def test_only_a_hooked_job_is_protected(hooked: bool, unprotected: str, value: float) -> None:
    lines = text(replace(STATUS, hooked=hooked, unprotected=unprotected))
    assert f'deadpool_protected{{job_id="j"}} {value}' in lines


def test_nodes_and_recoveries_are_counted_from_0_on() -> None:
    nodes = (node("node0", "member"), node("node1", "lost"), node("node2", "member"))
    records = (recovery("permanent"), recovery("transient"), recovery("permanent"))
    lines = text(replace(STATUS, nodes=nodes, recoveries=records))
    assert 'deadpool_nodes{job_id="j",role="member"} 2.0' in lines
    assert 'deadpool_nodes{job_id="j",role="spare"} 0.0' in lines
    assert 'deadpool_recoveries_total{class="permanent",job_id="j"} 2.0' in lines
    assert 'deadpool_recoveries_total{class="planned",job_id="j"} 0.0' in lines
    assert not [line for line in lines if "deadpool_node_" in line and "node1" in line]


def test_a_recovery_is_counted_by_its_phases_and_its_time() -> None:
    records = tuple(
        replace(recovery("transient"), phases_s=PhaseTimes(quiesce=total_s - 0.25, first_step=0.25), total_s=total_s)
        for total_s in (0.5, 4.0)
    )
    lines = text(replace(STATUS, recoveries=records))
    assert 'deadpool_recovery_phase_seconds_total{job_id="j",phase="quiesce"} 4.0' in lines
    assert 'deadpool_recovery_phase_seconds_total{job_id="j",phase="first_step"} 0.5' in lines
    assert 'deadpool_recovery_seconds_bucket{job_id="j",le="0.5"} 1.0' in lines
    assert 'deadpool_recovery_seconds_bucket{job_id="j",le="5.0"} 2.0' in lines
    assert 'deadpool_recovery_seconds_sum{job_id="j"} 4.5' in lines
    assert 'deadpool_steps_reexecuted_total{job_id="j"} 2.0' in lines


def test_events_are_counted_by_name_and_what_matters_of_them(tmp_path: Path) -> None:
    past = [json.dumps({"event": "injection", "caused_by": "1", "kind": "kill-rank"})]
    file = LineFile(tmp_path / "events.jsonl")
    log = EventLog(file, past)
    for failure_class in ("transient", "permanent", "transient"):
        log.add(Note(cause="2", event="failure", generation=1, fields={"failure_class": failure_class}))
    log.add(Note(cause="3", event="started", generation=1, fields={}))
    file.close()
    lines = text(STATUS, events=log.counts)
    assert 'deadpool_events_total{event="failure",job_id="j"} 3.0' in lines
    assert 'deadpool_events_total{event="started",job_id="j"} 1.0' in lines
    assert 'deadpool_events_total{event="unprotected",job_id="j"} 0.0' in lines
    assert 'deadpool_failures_total{class="transient",job_id="j"} 2.0' in lines
    assert 'deadpool_injections_total{job_id="j",kind="kill-rank"} 1.0' in lines
    assert 'deadpool_injections_total{job_id="j",kind="kill-node"} 0.0' in lines


def test_the_kinds_of_time_are_all_there_and_sum_to_the_wall_clock() -> None:
    spent = SpentTimes(assembling=1, starting=2, productive=4, again=8, stalled=16, recovering=32, waiting=64, finishing=128)
    lines = text(replace(STATUS, spent_s=spent))
    values = [float(line.split()[-1]) for line in lines if line.startswith("deadpool_spent_seconds{")]
    assert sum(values) == spent.wall_s == 255


def test_prometheus_finds_the_agents_that_serve_metrics() -> None:
    nodes = (
        replace(node("node0", "member"), host="10.0.0.1", metrics_port=9101),
        replace(node("node1", "lost"), host="10.0.0.2", metrics_port=9101),
        replace(node("node2", "spare"), host="fd00::3", metrics_port=9102),
        node("node3", "spare"),
    )
    found = json.loads(targets(replace(STATUS, nodes=nodes), "10.0.0.1:9100"))
    assert [each["targets"] for each in found] == [["10.0.0.1:9100"], ["10.0.0.1:9101"], ["[fd00::3]:9102"]]
    assert found[2]["labels"] == {"deadpool_job": "j", "deadpool_part": "agent", "deadpool_node": "node2"}
