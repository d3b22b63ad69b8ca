"""The job as Prometheus metrics (--metrics-port): what status shows, for monitoring and alerts. Nothing here decides anything."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from deadpool.host.errors import ConfigError
from deadpool.proto.messages.status import JobStatus

_ANSWER_TIMEOUT_S = 5.0


def families(status: JobStatus) -> Iterator[Metric]:
    """Yields every metric of the job; steps and generations as numbers, seconds and bytes as the names say."""

    def gauge(name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"deadpool_{name}", text, labels=["job"])
        family.add_metric([status.job_id], value)
        return family

    info = GaugeMetricFamily("deadpool_phase", "1 for the phase that the job is in", labels=["job", "phase"])
    info.add_metric([status.job_id, status.phase], 1)
    yield info
    yield gauge("generation", "Generation of the job", status.generation)
    yield gauge("step", "Newest step that a rank has completed", status.step)
    yield gauge("commit_step", "Newest committed step; -1 before the first", status.commit_step)
    yield gauge("checkpoint_step", "Step of the newest whole persistent checkpoint; -1 without one", status.checkpoint_step)
    yield gauge("steps_per_second", "Step rate", status.steps_per_s)
    protected = status.hooked and not status.unprotected
    yield gauge("protected", "1 while a failure loses no committed step; 0 while protection is off, or without hooks", protected)
    stall = CounterMetricFamily("deadpool_exposed_stall_seconds", "Time that steps have waited for protection", labels=["job"])
    stall.add_metric([status.job_id], status.exposed_stall_s)
    yield stall
    recoveries = CounterMetricFamily("deadpool_recoveries", "Recoveries by class", labels=["job", "class"])
    for each in sorted({record.failure_class for record in status.recoveries}):
        recoveries.add_metric([status.job_id, each], sum(record.failure_class == each for record in status.recoveries))
    yield recoveries
    spent = CounterMetricFamily(
        "deadpool_time_seconds", "Wall clock by what it went into; the kinds sum to it", labels=["job", "kind"]
    )
    for kind in (each.name for each in fields(status.spent_s) if each.name != "node_s"):
        spent.add_metric([status.job_id, kind], getattr(status.spent_s, kind))
    yield spent
    node_seconds = CounterMetricFamily(
        "deadpool_node_seconds", "Time of all nodes that were there, spares included", labels=["job"]
    )
    node_seconds.add_metric([status.job_id], status.spent_s.node_s)
    yield node_seconds
    yield gauge("goodput_ratio", "Share of the time since the start in which new steps were made", status.spent_s.goodput)
    nodes = GaugeMetricFamily("deadpool_nodes", "Nodes by role", labels=["job", "role"])
    for role in sorted({node.role for node in status.nodes}):
        nodes.add_metric([status.job_id, role], sum(node.role == role for node in status.nodes))
    yield nodes
    heartbeat = GaugeMetricFamily("deadpool_heartbeat_age_seconds", "Time since a node's last heartbeat", labels=["job", "node"])
    shm = GaugeMetricFamily("deadpool_shm_free_bytes", "Free space in a node's /dev/shm", labels=["job", "node"])
    for node in status.nodes:
        if node.role != "lost":
            heartbeat.add_metric([status.job_id, node.node_id], node.heartbeat_age_s)
            shm.add_metric([status.job_id, node.node_id], node.shm_free_bytes)
    yield heartbeat
    yield shm


class _Job(Collector):
    """Asks for the status in the loop that owns it; scrapes come in threads of their own."""

    def __init__(self, ask: Callable[[], JobStatus], loop: asyncio.AbstractEventLoop) -> None:
        self._ask, self._loop = ask, loop

    def collect(self) -> Iterator[Metric]:
        async def ask() -> JobStatus:
            return self._ask()

        return families(asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_ANSWER_TIMEOUT_S))

    def describe(self) -> Iterator[Metric]:
        return iter(())  # registering must not ask


@contextmanager
def serving(ask: Callable[[], JobStatus], *, host: str, port: int) -> Iterator[None]:
    """Inside, the metrics are at http://host:port/metrics. ConfigError when the port is taken."""
    registry = CollectorRegistry()
    registry.register(_Job(ask, asyncio.get_running_loop()))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(f"--metrics-port {port}: cannot listen there, choose another ({error.strerror})") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
