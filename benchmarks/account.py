"""Do a job's events, metrics and summary account for every failure that was injected, and for every second?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_PRECISION_S = 1e-3
_CLOCKS_S = 1.0  # between two clocks' readings of one moment, on a busy machine


class JobMetrics:
    """The job's metrics as they were at its end (metrics.prom in the log folder)."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def by(self, name: str, label: str) -> dict[str, float]:
        """Returns the values of that metric that are not 0, by that label."""
        return {each.labels[label]: each.value for each in self._samples if each.name == name and each.value}

    def total(self, name: str) -> float:
        return sum(each.value for each in self._samples if each.name == name)


def unaccounted(
    sent: Sequence[str], events: Sequence[Mapping[str, Any]], metrics: JobMetrics, summary: Mapping[str, Any], *, wall_s: float
) -> list[str]:
    """Returns what does not fit together, a line each; none when every failure and every second is accounted for.

    `sent`: the kinds of the failures that were injected, one each. `wall_s`: from launch to end, by somebody else's clock.
    """
    return [*_failures(sent, events, metrics, summary), *_seconds(events, metrics, summary, wall_s)]


def _failures(
    sent: Sequence[str], events: Sequence[Mapping[str, Any]], metrics: JobMetrics, summary: Mapping[str, Any]
) -> list[str]:
    def counted(event: str, field: str) -> dict[str, float]:
        return dict(Counter(str(each[field]) for each in events if each["event"] == event))

    ends = counted("recovered", "failure_class"), counted("restarted", "failure_class")
    recoveries = dict(Counter(ends[0]) + Counter(ends[1]))
    armed = Counter(counted("injection_armed", "kind"))
    pairs: list[tuple[str, Mapping[str, float], Mapping[str, float]]] = [
        ("sent and not in the events", Counter(sent) - armed, {}),
        ("armed and not carried out", armed - Counter(counted("injection", "kind")), {}),
        ("injections in events and metrics", counted("injection", "kind"), metrics.by("deadpool_injections_total", "kind")),
        ("failures in events and metrics", counted("failure", "failure_class"), metrics.by("deadpool_failures_total", "class")),
        ("recoveries in events and metrics", recoveries, metrics.by("deadpool_recoveries_total", "class")),
        ("recoveries in events and summary", recoveries, dict(Counter(each["class"] for each in summary["recoveries"]))),
        (
            "events in file and metrics",
            dict(Counter(each["event"] for each in events)),
            metrics.by("deadpool_events_total", "event"),
        ),
    ]
    return [f"{what}: {dict(one)} and {dict(other)}" for what, one, other in pairs if dict(one) != dict(other)]


def _seconds(events: Sequence[Mapping[str, Any]], metrics: JobMetrics, summary: Mapping[str, Any], wall_s: float) -> list[str]:
    spent = {kind: seconds for kind, seconds in summary["spent_s"].items() if kind != "node_s"}
    booked_s, known = sum(spent.values()), metrics.by("deadpool_spent_seconds", "kind")
    first, last = (datetime.fromisoformat(events[at]["time"]).timestamp() for at in (0, -1))
    totals = [each["total_s"] for each in summary["recoveries"]]
    problems = []
    if not last - first - _CLOCKS_S <= booked_s <= wall_s + _CLOCKS_S:
        problems.append(f"{booked_s:.3f} s are booked; the events span {last - first:.3f} s, the job took {wall_s:.3f} s")
    for kind, seconds in spent.items():
        if kind != "finishing" and abs(seconds - known.get(kind, 0.0)) > _PRECISION_S:  # that one goes on after the summary
            problems.append(f"{kind}: {seconds:.3f} s in the summary, {known.get(kind, 0.0):.3f} s in the metrics")
    for name in ("deadpool_recovery_phase_seconds_total", "deadpool_recovery_seconds_sum"):
        if abs(metrics.total(name) - sum(totals)) > _PRECISION_S * (1 + len(totals)):
            problems.append(f"{name} is {metrics.total(name):.3f} s, the recoveries of the summary took {sum(totals):.3f} s")
    return problems
