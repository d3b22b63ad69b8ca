"""What the events of a real job say of failures and recoveries, for a simulation with its figures. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from deadpool.cli.simulate.cluster import DAY_S
from deadpool.host.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """`swap_s`, `transient_s`: medians of its recoveries with and without a spare; None where there was none.

    `failures`: recoveries that no person had asked for. `step_s`: a step's mean time; None where the job's summary does not say.
    """

    nodes: int
    ran_s: float
    failures: int
    transient: int
    swap_s: float | None
    transient_s: float | None
    step_s: float | None = None

    @property
    def failures_per_node_day(self) -> float:
        return self.failures / (self.nodes * self.ran_s / DAY_S)


def measured_job(events: Sequence[dict[str, Any]], summary: Mapping[str, Any] | None = None) -> MeasuredJob:
    """`events`: of events.jsonl, of one job, and its summary. ConfigError where it never ran."""
    members = [len(event.get("members", ())) for event in events if event.get("event") == "generation"]
    started = [str(event["time"]) for event in events if event.get("event") == "started"]
    if not members or not started:
        raise ConfigError("these events are of no job that has run: there is no `started` among them")
    ran = datetime.fromisoformat(str(events[-1]["time"])) - datetime.fromisoformat(started[0])
    recovered = [event for event in events if event.get("event") == "recovered" and event.get("failure_class") != "planned"]
    swaps = [float(event["total_s"]) for event in recovered if event.get("failure_class") == "permanent"]
    others = [float(event["total_s"]) for event in recovered if event.get("failure_class") != "permanent"]
    return MeasuredJob(
        nodes=max(members),
        ran_s=max(ran.total_seconds(), 1e-3),
        failures=len(recovered),
        transient=len(others),
        swap_s=median(swaps) if swaps else None,
        transient_s=median(others) if others else None,
        step_s=summary["spent_s"]["productive"] / summary["steps"] if summary and summary["steps"] else None,
    )
