"""The job as Prometheus metrics (--metrics-port): what status shows, and counts of events. docs/monitoring.md explains them.

Every series has the job's name in `job_id` (`job` is Prometheus's own). The values of all other labels are known beforehand, but
for `node`: the nodes that live. What is counted is there from the start with 0, so that the first one is seen to come.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import CollectorRegistry

from deadpool.host import metrics_server
from deadpool.host.addresses import join_host_port
from deadpool.host.errors import ConfigError
from deadpool.proto.config import INJECTION_KINDS
from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, SpentTimes
from deadpool.supervisor.model.failure import FailureClass
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.report.events import EVENTS
from deadpool.supervisor.report.measures import JobMeasures

TARGETS_PATH = "/targets"
_ANSWER_TIMEOUT_S = 5.0
_BUCKETS_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_ROLES = (*NodeRole, "draining")
_RECOVERY_CLASSES = (FailureClass.TRANSIENT, FailureClass.PERMANENT, FailureClass.PLANNED)
_DETAIL_VALUES = {"failure": tuple(FailureClass), "injection": INJECTION_KINDS}


def families(measures: JobMeasures) -> Iterator[Metric]:
    """Yields every metric of the job; steps and generations as numbers, seconds and bytes as the names say."""
    job = _OfJob(measures.status.job_id)
    yield from _where_it_is(job, measures)
    yield from _protection(job, measures)
    yield from _time(job, measures)
    yield from _recoveries(job, measures.status)
    yield from _events(job, measures.events)
    yield from _nodes(job, measures)


@dataclass(frozen=True, slots=True)
class _OfJob:
    """Makes families whose samples have the job's name, and one label more where one is named."""

    job_id: str

    def gauge(self, name: str, text: str, value: float) -> Metric:
        return self.gauges(name, text, "", {"": value})

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"deadpool_{name}", text, labels=["job_id", label] if label else ["job_id"])
        self._add(family, label, values)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        return self.counters(name, text, "", {"": value})

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"deadpool_{name}", text, labels=["job_id", label] if label else ["job_id"])
        self._add(family, label, values)
        return family

    def _add(self, family: GaugeMetricFamily | CounterMetricFamily, label: str, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            family.add_metric([self.job_id, key] if label else [self.job_id], value)


def _where_it_is(job: _OfJob, measures: JobMeasures) -> Iterator[Metric]:
    status = measures.status
    phases = {phase.value: float(phase == status.phase) for phase in Phase}
    yield job.gauges("phase", "1 for the phase that the job is in, 0 for the others", "phase", phases)
    yield job.gauge("generation", "Generation of the job", status.generation)
    yield job.gauge("ranks", "Ranks that the job has", status.world_size)
    yield job.gauge("excluded_ranks", "Ranks without which the job runs now (--on-loss exclude)", len(status.excluded))
    yield job.gauge("step", "Newest step that a rank has completed; -1 before the first", status.step)
    yield job.gauge("last_step", "Step with which the present loop ends; 0 while that is not known", status.until)
    yield job.gauge("steps_per_second", "Step rate over the last seconds; 0 while steps are done again", status.steps_per_s)
    yield job.gauge("tokens_per_second", "Tokens of all ranks; 0 where the script reports none", status.tokens_per_s)
    reported = {each.name: each.value for each in status.reported}
    yield job.gauges("reported", "What the script reports (guard.report), by its own names", "name", reported)


def _protection(job: _OfJob, measures: JobMeasures) -> Iterator[Metric]:
    status = measures.status
    protected = status.hooked and not status.unprotected
    yield job.gauge(
        "protected", "1 while a failure loses no committed step; 0 while protection is off, or without hooks", protected
    )
    yield job.gauge("commit_step", "Newest committed step; -1 before the first", status.commit_step)
    lag = max(0, status.step - status.commit_step) if status.hooked else 0
    yield job.gauge("replication_lag_steps", "Steps that are completed and not yet committed, so not on other nodes", lag)
    if measures.commit_age_s is not None:
        yield job.gauge("commit_age_seconds", "Time since a newer commit was last heard of", measures.commit_age_s)
    yield job.gauge("checkpoint_step", "Step of the newest whole persistent checkpoint; -1 without one", status.checkpoint_step)
    stall = "Time that the steps of the rank that has waited longest have waited for protection"
    yield job.counter("exposed_stall_seconds", stall, status.exposed_stall_s)


def _time(job: _OfJob, measures: JobMeasures) -> Iterator[Metric]:
    spent = measures.status.spent_s
    kinds = {each.name: getattr(spent, each.name) for each in fields(SpentTimes) if each.name != "node_s"}
    # no counter: the time from a failure to its detection is moved from productive to recovering
    yield job.gauges("spent_seconds", "Wall clock by what it went into; the kinds sum to it", "kind", kinds)
    yield job.counter("node_seconds", "Time of all nodes that were there, spares included", spent.node_s)
    yield job.gauge("goodput_ratio", "Share of the time since the start in which new steps were made", spent.goodput)
    charged = "Share of the time of all nodes, spares included, that went into new steps"
    yield job.gauge("goodput_spares_charged_ratio", charged, spent.charged(measures.seats))


def _recoveries(job: _OfJob, status: JobStatus) -> Iterator[Metric]:
    records = status.recoveries
    classes = {each.value: float(sum(record.failure_class == each for record in records)) for each in _RECOVERY_CLASSES}
    yield job.counters("recoveries", "Recoveries that are over, by the class of what led to them", "class", classes)
    phases = {each.name: sum(getattr(record.phases_s, each.name) for record in records) for each in fields(PhaseTimes)}
    yield job.counters("recovery_phase_seconds", "Time of all recoveries by phase; the phases sum to it", "phase", phases)
    family = HistogramMetricFamily("deadpool_recovery_seconds", "Time of a recovery, from the failure on", labels=["job_id"])
    totals = [record.total_s for record in records]
    buckets: list[tuple[str, float]] = [(str(limit), sum(total <= limit for total in totals)) for limit in _BUCKETS_S]
    family.add_metric([job.job_id], [*buckets, ("+Inf", len(totals))], sum(totals))
    yield family
    again = sum(record.steps_reexecuted for record in records)
    yield job.counter("steps_reexecuted", "Steps that recoveries have had done again", again)
    lost = sum(record.committed_steps_lost for record in records)
    yield job.counter(
        "committed_steps_lost", "Committed steps that are lost: more nodes have failed than --replicas covers", lost
    )


def _events(job: _OfJob, events: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    totals = dict.fromkeys(EVENTS, 0.0)
    for (event, _), count in events.items():
        totals[event] = totals.get(event, 0.0) + count
    yield job.counters("events", "Events of the job (docs/events.md)", "event", totals)
    for name, event, text in (
        ("failures", "failure", "Failures that were recovered from, by class"),
        ("injections", "injection", "Failures that somebody has asked for, by kind"),
    ):
        counts = {str(value): float(events.get((event, value), 0)) for value in _DETAIL_VALUES[event]}
        yield job.counters(name, text, {"failure": "class", "injection": "kind"}[event], counts)


def _nodes(job: _OfJob, measures: JobMeasures) -> Iterator[Metric]:
    nodes = measures.status.nodes
    roles = {str(role): float(sum(node.role == role for node in nodes)) for role in _ROLES}
    yield job.gauges("nodes", "Nodes by role", "role", roles)
    yield job.gauge("seats", "Nodes that the job is to train on", measures.seats)
    yield job.gauge("spares_wanted", "Spares that the job was launched with", measures.spares)
    living = [node for node in nodes if node.role != "lost"]

    def of_nodes(name: str, text: str, value: Callable[[NodeStatus], float]) -> Metric:
        return job.gauges(f"node_{name}", text, "node", {node.node_id: value(node) for node in living})

    yield of_nodes("heartbeat_age_seconds", "Time since a node's last heartbeat", lambda node: node.heartbeat_age_s)
    yield of_nodes("cpu_ratio", "Share of a node's CPUs that is in use", lambda node: node.cpu_share)
    yield of_nodes("memory_ratio", "Share of a node's memory that is in use", lambda node: node.memory_share)
    yield of_nodes("shm_free_bytes", "Free space in a node's /dev/shm", lambda node: node.shm_free_bytes)
    yield of_nodes("clock_ahead_seconds", "A node's calendar clock, before the supervisor's", lambda node: node.clock_ahead_s)
    yield of_nodes(
        "troubles", "What a node runs out of: how many of memory, /dev/shm, files, logs", lambda node: len(node.troubles)
    )
    straggler = "Own part of a step of a node's straggler, so many times the median of all ranks; 0 where no rank straggles"
    yield of_nodes("straggler_ratio", straggler, lambda node: max((rank.slow_times for rank in node.ranks), default=0.0))
    yield of_nodes("standins_ready", "Processes that wait for a rank", lambda node: node.standins_ready)


def targets(status: JobStatus, here: str) -> bytes:
    """Returns where the job's metrics are, as Prometheus's HTTP service discovery reads it. `here`: HOST:PORT of our own."""
    found = [{"targets": [here], "labels": {"deadpool_job": status.job_id, "deadpool_part": "supervisor"}}]
    for node in status.nodes:
        if node.role != "lost" and node.metrics_port:
            labels = {"deadpool_job": status.job_id, "deadpool_part": "agent", "deadpool_node": node.node_id}
            found.append({"targets": [join_host_port(node.host, node.metrics_port)], "labels": labels})
    return json.dumps(found).encode()


def exposition(measures: JobMeasures) -> bytes:
    """Returns the metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(metrics_server.Collected(lambda: families(measures)))
    return generate_latest(registry)


@contextmanager
def serving(ask: Callable[[], JobMeasures], *, host: str, port: int) -> Iterator[None]:
    """Inside, the metrics are at http://host:port/metrics, where else they are at /targets. ConfigError when the port is taken.

    `ask` is called in the loop that this is called in.
    """
    loop = asyncio.get_running_loop()

    def measures() -> JobMeasures:
        async def asked() -> JobMeasures:
            return ask()

        return asyncio.run_coroutine_threadsafe(asked(), loop).result(_ANSWER_TIMEOUT_S)

    pages = {TARGETS_PATH: lambda: targets(measures().status, join_host_port(host, port))}
    with ExitStack() as stack:
        try:
            stack.enter_context(metrics_server.serving(lambda: families(measures()), host=host, port=port, pages=pages))
        except OSError as error:
            raise ConfigError(f"--metrics-port {port}: cannot listen there, choose another ({error.strerror})") from error
        yield
