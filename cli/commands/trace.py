"""A job's recoveries as a trace that Perfetto and chrome://tracing open: the supervisor's phases, and what each rank did. Pure.

The supervisor's events have its clock; each node's moments (agent/logs/moments.py) have its own, which is put right by what
heartbeats told of it (the event clocks_differ).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from deadpool.agent.logs.moments import FILE
from deadpool.cli.commands.ended import parse
from deadpool.cli.live.marks import PHASES

_RECOVERIES = ("recovered", "restarted")
_INSTANTS = (
    "failure", "node_lost", "rank_exited", "rank_raised", "rank_stopped", "collective_failed", "hang", "no_progress", "injection",
    "diagnosis", "generation", "plan", "spare_chosen", "ranks_killed", "waiting_for_node", "back_to_checkpoint", "unprotected",
    "protected_again", "checkpoint", "drain", "started", "released", "job_ended",
)  # fmt: skip
_SPANS = {  # (earlier moment, later one) of a rank -> what it did between them
    ("Quiesce", "RankPrepared"): "leaves its step",
    ("Assign", "RankJoined"): "comes to join()",
    ("StartRanks", "RankJoined"): "comes to join()",
    ("RankJoined", "RankPrepared"): "builds and rehearses",
    ("RankPrepared", "Reform"): "waits for the plan",
    ("Reform", "RankReformed"): "opens its groups",
    ("RankReformed", "RankRestored"): "restores",
    ("RankRestored", "RankResumed"): "first step",
}
_SUPERVISOR = 0
_BEFORE_S = 60.0  # what is older is of another job that has logged in the same folder
Moments = Mapping[str, Sequence[Mapping[str, Any]]]


def chrome_trace(events: Sequence[Mapping[str, Any]], moments: Moments) -> dict[str, Any]:
    """Returns the trace in Chrome's JSON: a process for the supervisor and one for each node, a thread for each rank.

    `moments`: node -> the lines of its moments. Times are microseconds since the job's first event.
    """
    began_s = _wall_s(events[0]) if events else 0.0
    ahead_s = _clocks(events)
    traced = [_name("process_name", _SUPERVISOR, 0, "supervisor")]
    for event in events:
        traced += _of_supervisor(event, began_s)
    for number, (node, lines) in enumerate(sorted(moments.items()), 1):
        traced.append(_name("process_name", number, 0, node))
        traced += _of_node(number, lines, began_s + ahead_s.get(node, 0.0))
    return {"traceEvents": traced, "displayTimeUnit": "ms"}


def _of_supervisor(event: Mapping[str, Any], began_s: float) -> list[dict[str, Any]]:
    kind = event.get("event")
    rest = {key: value for key, value in event.items() if key not in ("time", "event", "version")}
    at_s = _wall_s(event) - began_s
    if kind in _INSTANTS:
        return [{"name": kind, "ph": "i", "s": "p", "ts": _us(at_s), "pid": _SUPERVISOR, "tid": 0, "args": rest}]
    if kind not in _RECOVERIES:
        return []
    began = at_s - float(event.get("total_s", 0.0))
    traced = [_span(f"{event.get('failure_class')}: {event.get('cause')}", began, at_s, _SUPERVISOR, 1, rest)]
    for phase in PHASES:
        took_s = float(event.get("phases_s", {}).get(phase, 0.0))
        if took_s > 0:
            traced.append(_span(phase.replace("_", " "), began, began + took_s, _SUPERVISOR, 2, {}))
            began += took_s
    return traced


def _of_node(process: int, lines: Iterable[Mapping[str, Any]], began_s: float) -> list[dict[str, Any]]:
    """Returns the spans between two moments of a rank that follow each other in one generation, and the other moments."""
    traced: list[dict[str, Any]] = []
    last: dict[tuple[int, int], Mapping[str, Any]] = {}  # (generation, rank)
    named: set[int] = set()
    by_rank: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        by_rank[int(line["rank"])].append(line)
    for rank, said in sorted(by_rank.items()):
        if rank not in named:
            named.add(rank)
            traced.append(_name("thread_name", process, rank + 1, f"rank {rank}"))
        for line in said:
            at_s = float(line["wall_s"]) - began_s
            if at_s < -_BEFORE_S:
                continue
            before = last.get((int(line["generation"]), rank))
            did = _SPANS.get((str(before["moment"]), str(line["moment"]))) if before is not None else None
            args = {"generation": line["generation"]}
            if before is not None and did is not None:
                traced.append(_span(did, float(before["wall_s"]) - began_s, at_s, process, rank + 1, args))
            else:
                name = str(line["moment"])
                traced.append({"name": name, "ph": "i", "s": "t", "ts": _us(at_s), "pid": process, "tid": rank + 1, "args": args})
            last[int(line["generation"]), rank] = line
    return traced


def _clocks(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Returns how far each node's clock is ahead of the supervisor's, as was said last."""
    said: dict[str, float] = {}
    for event in events:
        if event.get("event") == "clocks_differ":
            said = dict(event.get("ahead_s", {}))
    return said


def _wall_s(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(str(event["time"])).timestamp()


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _span(name: str, began_s: float, ended_s: float, process: int, thread: int, args: Mapping[str, Any]) -> dict[str, Any]:
    began = _us(began_s)
    return {
        "name": name,
        "ph": "X",
        "ts": began,
        "dur": max(1, _us(ended_s) - began),
        "pid": process,
        "tid": thread,
        "args": args,
    }


def read_moments(log_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns node -> its moments, as far as its log folder can be seen from here."""
    found = {}
    for path in log_dir.glob(f"*/{FILE}"):
        lines = path.read_text(errors="replace").splitlines()
        found[path.parent.name] = [event for line in lines if (event := parse(line))]
    return found
