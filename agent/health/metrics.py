"""A node as Prometheus metrics (--metrics-port): its host, its ranks, its vault, as its agent sees them (docs/monitoring.md).

Each series has the job's name in `job_id` and the node's in `node`; `rank` is one of the node's, other labels have few values.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deadpool.agent.health.host_pressure import TROUBLES, Usage
from deadpool.host import metrics_server
from deadpool.proto.messages import Heartbeat, RankProgress

_DISK_BLOCK_BYTES = 512  # of st_blocks
OF_READINGS = {  # health readings -> metric, what it says
    "gpu_lost": ("gpu_lost", "1 when a GPU does not answer any more"),
    "gpu_xid": ("gpu_xid", "Newest critical XID of a GPU; 0 before the first"),
    "gpu_ecc_uncorrected": (
        "gpu_ecc_uncorrected_errors",
        "Uncorrected memory errors of the worst GPU since its driver was loaded",
    ),
    "gpu_rows_remapped": ("gpu_rows_remapped", "Memory rows of the worst GPU that were remapped"),
    "gpu_remap_pending": ("gpu_remap_pending", "1 when a GPU waits for a reset to remap memory rows"),
    "gpu_remap_failed": ("gpu_remap_failed", "1 when a GPU could not remap a memory row"),
    "gpu_temperature_c": ("gpu_temperature_celsius", "Temperature of the hottest GPU"),
    "gpu_thermal_slowdown": ("gpu_thermal_slowdown", "1 while a GPU is slowed down by heat"),
    "gpu_busy_share": ("gpu_busy_ratio", "Share of the time in which the busiest GPU computes"),
    "gpu_memory_share": ("gpu_memory_ratio", "Share of the fullest GPU's memory that is in use"),
    "gpu_nvlink_errors": ("gpu_nvlink_recoveries", "NVLink recoveries of the worst GPU"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeasures:
    """`heartbeat`: the last one. `vault_bytes`: that the vault takes of /dev/shm."""

    job_id: str
    node_id: str
    heartbeat: Heartbeat
    connected: bool
    usage: Usage
    troubles: frozenset[str] = frozenset()
    replicas_received: int = 0
    replica_bytes_received: int = 0
    vault_bytes: int = 0


def families(node: NodeMeasures) -> Iterator[Metric]:
    """Yields every metric of the node."""
    of_node, beat, usage = [node.job_id, node.node_id], node.heartbeat, node.usage

    def gauge(name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"deadpool_agent_{name}", text, labels=["job_id", "node"])
        family.add_metric(of_node, value)
        return family

    def counter(name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"deadpool_agent_{name}", text, labels=["job_id", "node"])
        family.add_metric(of_node, value)
        return family

    yield gauge("connected", "1 while the agent's stream to the supervisor is open", node.connected)
    yield gauge("generation", "Newest generation that the agent has obeyed", beat.generation)
    yield gauge("standins_ready", "Processes that wait for a rank", beat.standins_ready)
    yield gauge("cpu_ratio", "Share of the node's CPUs that is in use", beat.cpu_share)
    yield gauge("memory_ratio", "Share of the node's memory that is in use", beat.memory_share)
    yield gauge("memory_available_bytes", "Memory that processes can still have", usage.memory_free_bytes)
    yield gauge("shm_free_bytes", "Free space in /dev/shm, where the vault is", usage.shm_free_bytes)
    yield gauge("log_disk_free_bytes", "Free space on the disk of the logs", usage.log_free_bytes)
    yield gauge("open_files_ratio", "Share of the agent's allowed open files that is in use", usage.files_share)
    trouble = GaugeMetricFamily("deadpool_agent_trouble", "1 while the node runs out of that", labels=["job_id", "node", "kind"])
    for kind in TROUBLES:
        trouble.add_metric([*of_node, kind], kind in node.troubles)
    yield trouble
    yield counter("sent_bytes", "Bytes that the machine's network interfaces have sent", beat.sent_bytes)
    yield counter("received_bytes", "Bytes that they have received", beat.received_bytes)
    yield gauge("vault_bytes", "Memory of snapshots and replicas", node.vault_bytes)
    yield counter("replicated_bytes", "Bytes of replicas that the ranks have sent to other nodes", beat.replicated_bytes)
    yield counter("replicas_received", "Replicas that were received whole from other nodes", node.replicas_received)
    yield counter("replica_received_bytes", "Bytes of replicas that were received whole", node.replica_bytes_received)
    yield from _ranks(of_node, node)
    for reading in beat.readings:
        if reading.name in OF_READINGS:
            yield gauge(*OF_READINGS[reading.name], reading.value)


def _ranks(of_node: list[str], node: NodeMeasures) -> Iterator[Metric]:
    def gauge(name: str, text: str, value: Callable[[RankProgress], float]) -> Metric:
        family = GaugeMetricFamily(f"deadpool_agent_rank_{name}", text, labels=["job_id", "node", "rank"])
        for rank in node.heartbeat.ranks:
            family.add_metric([*of_node, str(rank.rank)], value(rank))
        return family

    def counter(name: str, text: str, value: Callable[[RankProgress], float]) -> Metric:
        family = CounterMetricFamily(f"deadpool_agent_rank_{name}", text, labels=["job_id", "node", "rank"])
        for rank in node.heartbeat.ranks:
            family.add_metric([*of_node, str(rank.rank)], value(rank))
        return family

    yield gauge("step", "Step that the rank is in", lambda rank: rank.step)
    yield gauge("commit_step", "Newest commit that the rank knows of", lambda rank: rank.commit_step)
    yield gauge("stopped", "1 while the rank's process is stopped", lambda rank: rank.stopped)
    yield gauge("resident_bytes", "Memory of the rank's process", lambda rank: rank.rss_bytes)
    yield counter("steps", "Steps that the rank's process has made", lambda rank: rank.steps_done)
    yield counter("step_seconds", "Time that these steps have taken", lambda rank: rank.stepped_s)
    waited = "Time of these steps with a collective under way: waiting for others, or communicating"
    yield counter("wait_seconds", waited, lambda rank: max(0.0, rank.waited_s))
    stall = "Time that the rank's process has waited for protection"
    yield counter("exposed_stall_seconds", stall, lambda rank: rank.exposed_stall_s)


def folder_bytes(folder: Path) -> int:
    """Returns what the folder's files take; those that go meanwhile are not counted."""
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                total += path.stat().st_blocks * _DISK_BLOCK_BYTES
    return total


def serving(measure: Callable[[], NodeMeasures], *, host: str, after_port: int) -> contextlib.AbstractContextManager[int]:
    """Inside, the node's metrics are at http://host:PORT/metrics; enters with PORT, the first free one after that of the job.

    `measure` is called in a thread. OSError when no port is free.
    """
    first = after_port + 1
    return metrics_server.serving(lambda: families(measure()), host=host, port=first, up_to=first + metrics_server.PORTS_TRIED)
