"""What a node's own metrics say."""

from pathlib import Path
from urllib.request import urlopen

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from deadpool.agent.health.host_pressure import TROUBLES, PressureWatch, Usage
from deadpool.agent.health.metrics import NodeMeasures, families, folder_bytes, serving
from deadpool.host.metrics_server import Collected
from deadpool.proto.messages import Heartbeat, RankProgress, Reading

RANK = RankProgress(
    rank=5, pid=7, step=41, commit_step=40, steps_done=41, exposed_stall_s=0.25, stepped_s=8.0, waited_s=2.0, rss_bytes=99
)
BEAT = Heartbeat(
    generation=3, ranks=(RANK,), cpu_share=0.5, standins_ready=2, readings=(Reading(name="gpu_temperature_c", value=61.0),)
)


def measures() -> NodeMeasures:
    return NodeMeasures(
        job_id="j",
        node_id="n",
        heartbeat=BEAT,
        connected=True,
        usage=Usage(shm_free_bytes=1024),
        troubles=frozenset({"memory"}),
        replicas_received=7,
        replica_bytes_received=700,
        vault_bytes=4096,
    )


def test_host_ranks_and_vault_are_there() -> None:
    registry = CollectorRegistry()
    registry.register(Collected(lambda: families(measures())))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'deadpool_agent_connected{job_id="j",node="n"} 1.0',
        'deadpool_agent_cpu_ratio{job_id="j",node="n"} 0.5',
        'deadpool_agent_shm_free_bytes{job_id="j",node="n"} 1024.0',
        'deadpool_agent_trouble{job_id="j",kind="memory",node="n"} 1.0',
        'deadpool_agent_trouble{job_id="j",kind="files",node="n"} 0.0',
        'deadpool_agent_replica_received_bytes_total{job_id="j",node="n"} 700.0',
        'deadpool_agent_rank_step{job_id="j",node="n",rank="5"} 41.0',
        'deadpool_agent_rank_step_seconds_total{job_id="j",node="n",rank="5"} 8.0',
        'deadpool_agent_rank_wait_seconds_total{job_id="j",node="n",rank="5"} 2.0',
        'deadpool_agent_rank_resident_bytes{job_id="j",node="n",rank="5"} 99.0',
        'deadpool_agent_gpu_temperature_celsius{job_id="j",node="n"} 61.0',
    ):
        assert line in lines


def test_every_trouble_that_an_agent_reports_has_a_series() -> None:
    worst = Usage(memory_share=1.0, shm_share=1.0, files_share=1.0, log_free_bytes=0)
    assert {each.kind for each in PressureWatch().changes(worst)} == set(TROUBLES)


def test_each_agent_of_a_machine_finds_a_port_after_the_supervisors() -> None:
    with (
        serving(measures, host="127.0.0.1", after_port=9407) as first,
        serving(measures, host="127.0.0.1", after_port=9407) as second,
    ):
        assert 9407 < first < second
        for port in (first, second):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=50) as page:
                body = page.read().decode()
            assert 'deadpool_agent_generation{job_id="j",node="n"} 3.0' in body
            assert "process_resident_memory_bytes" in body


def test_what_goes_meanwhile_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "slot").write_bytes(b"x" * 10_000)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert folder_bytes(tmp_path) >= 10_000
    assert folder_bytes(tmp_path / "nowhere") == 0
