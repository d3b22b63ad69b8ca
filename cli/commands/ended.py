"""A job that has ended, as its events tell of it. Pure."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

_RECOVERIES = ("recovered", "restarted")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """`exit_code`: None where the events do not say it: the supervisor was killed, and the launcher with it.

    `error`: of the process that failed, its last line.
    `began`, `ended`: ISO times of the first event and of the end (or the last event). `recoveries`: their events.
    `summary`: as its supervisor has written it, {} where it could not.
    """

    job_id: str
    log_dir: str
    exit_code: int | None
    reason: str
    error: str
    began: str
    ended: str
    generation: int
    recoveries: tuple[dict[str, Any], ...]
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        if not self.began:
            return 0.0
        return (datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.began)).total_seconds()


def ended_job(job_id: str, log_dir: str, lines: Iterable[str], summary: str = "") -> EndedJob:
    """`lines`: of events.jsonl; one that was cut is passed over. `summary`: that of another job in the same folder is, too."""
    events = last_job([event for line in lines if (event := parse(line))])
    end: dict[str, Any] = next((event for event in reversed(events) if event.get("event") == "job_ended"), {})
    last = end or (events[-1] if events else {})
    written = parse(summary)
    is_of_it = bool(end) and (written.get("exit_code"), written.get("generations")) == (
        end.get("exit_code"),
        end.get("generation"),
    )
    return EndedJob(
        job_id=job_id,
        log_dir=log_dir,
        exit_code=end.get("exit_code"),
        reason=str(end.get("reason", "")) or "its events do not say how: supervisor and launcher were killed",
        error=str(end.get("error", "")),
        began=str(events[0].get("time", "")) if events else "",
        ended=str(last.get("time", "")),
        generation=int(last.get("generation", 0)),
        recoveries=tuple(event for event in events if event.get("event") in _RECOVERIES),
        summary=written if is_of_it else {},
    )


def last_job(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the events of the last of the jobs that have logged in one folder: each begins at generation 0."""
    begin = 0
    for index, (before, event) in enumerate(itertools.pairwise(events), 1):
        if event.get("generation") == 0 and before.get("generation") != 0:
            begin = index
    return events[begin:]


def parse(line: str) -> dict[str, Any]:
    """Returns the event; {} for a line that a full disk or a killed writer has cut."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def as_json(job: EndedJob) -> dict[str, Any]:
    """Returns what `deadpool status --json` prints of it; `phase` is "ended", which no running job's is."""
    return {
        "job_id": job.job_id,
        "phase": "ended",
        "exit_code": job.exit_code,
        "reason": job.reason,
        "error": job.error,
        "began": job.began,
        "ended": job.ended,
        "generation": job.generation,
        "log_dir": job.log_dir,
        "summary": job.summary,
        "recoveries": [
            {("class" if key == "failure_class" else key): value for key, value in each.items()} for each in job.recoveries
        ],
    }
