"""events.jsonl, line by line: which events there are and what each says. docs/events.md is generated from this table. Pure.

    python -m deadpool.supervisor.report.events > docs/events.md

Within one VERSION events and fields may be added; what is there keeps its name, its type and its meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

VERSION = 1


class FieldKind(Enum):
    """How a field reads in JSON; its value says it in the docs."""

    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    FLAG = "true or false"
    RANKS = "list of ranks"
    TEXTS = "list of texts"
    COUNTS = "object of numbers"

    def fits(self, value: object) -> bool:
        """Returns whether the value, read back from JSON or about to be written, is of this kind."""
        match self:
            case FieldKind.TEXT:
                return isinstance(value, str)
            case FieldKind.WHOLE:
                return isinstance(value, int) and not isinstance(value, bool)
            case FieldKind.NUMBER:
                return isinstance(value, int | float) and not isinstance(value, bool)
            case FieldKind.FLAG:
                return isinstance(value, bool)
            case FieldKind.RANKS:
                return isinstance(value, tuple | list) and all(isinstance(each, int) for each in value)
            case FieldKind.TEXTS:
                return isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)
            case FieldKind.COUNTS:
                return isinstance(value, dict) and all(isinstance(each, int | float) for each in value.values())


T, W, N, F, R, TT, C = (
    FieldKind.TEXT,
    FieldKind.WHOLE,
    FieldKind.NUMBER,
    FieldKind.FLAG,
    FieldKind.RANKS,
    FieldKind.TEXTS,
    FieldKind.COUNTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind:
    """`fields`: always there; `sometimes`: the rest."""

    says: str
    fields: Mapping[str, FieldKind]
    sometimes: Mapping[str, FieldKind]


def _event(says: str, sometimes: Mapping[str, FieldKind] | None = None, /, **fields: FieldKind) -> EventKind:
    return EventKind(says=says, fields=fields, sometimes=sometimes or {})


COMMON = {
    "time": (T, "UTC, ISO 8601 with milliseconds"),
    "event": (T, "its name: the headings below"),
    "generation": (W, "of the job when it happened; 0 before the first one"),
    "caused_by": (T, "number and kind of what led to it; events of one cause belong together"),
    "version": (W, "of this table"),
}

_RECOVERY = {
    "cause": T, "failure_class": T, "ranks": R, "spare": T, "moved": R, "resume_step": W, "steps_reexecuted": W, "total_s": N,
    "phases_s": C, "excluded": R, "returned": R, "groups": C,
}  # fmt: skip

HEADINGS: dict[str, dict[str, EventKind]] = {
    "The job": {
        "node_joined": _event("A node's agent has come; members and spares alike.", node=T, index=W, host=T),
        "generation": _event(
            "A generation begins: at the start, and after every failure.", {"from_scratch": F}, reason=T, members=TT
        ),
        "hooked": _event("The first rank has called join(): the job is protected from here on.", rank=W),
        "started": _event("All ranks of the first generation run."),
        "slowest_build": _event("No process has taken longer so far from join() to its first step.", rank=W, seconds=N),
        "released": _event("All ranks have finished their step loops; they may exit, or come to another one.", step=W),
        "loop_begins": _event("All ranks have come to their next loop, and go on with this step.", step=W),
        "job_ended": _event(
            "The last event: why the job is over. 0: done. `error`: the last line of what the process said that it failed of.",
            {"error": T},
            exit_code=W,
            reason=T,
        ),
        "waiting_for_node": _event("There is no node for these places; the job waits for one.", {"ranks": R}, seats=R),
        "resized": _event("The job goes on with so many nodes.", nnodes=W),
    },
    "Failures": {
        "rank_exited": _event("A rank's process is gone.", rank=W, node=T, pid=W, exit_code=W, signal=W),
        "died_exiting": _event(
            "A rank whose script had ended died on its way out: nothing is lost.", rank=W, node=T, exit_code=W, signal=W
        ),
        "rank_raised": _event(
            "A step has raised, or the script ends in its loop; the rank's exit follows.", rank=W, node=T, error=T
        ),
        "rank_stopped": _event("A rank's process is stopped (SIGSTOP).", rank=W, node=T),
        "node_lost": _event(
            "A node is gone, with these ranks; `spares_left`: it was a spare.", {"ranks": R, "spares_left": W}, node=T, reason=T
        ),
        "node_faulty": _event("A node gets no ranks any more, as long as there are others.", {"rule": T}, node=T, cause=T),
        "kept_on_node": _event("A node that was or should have been given up has ranks: there is no other.", node=T, reason=T),
        "collective_failed": _event(
            "A rank reports a collective that failed; `error_names`: the node in its text.",
            rank=W,
            node=T,
            error_names=T,
            error=T,
        ),
        "diagnosis": _event("Which class a failure is of, by which rule.", cause=T, failure_class=T, rule=T, reason=T),
        "failure": _event(
            "What is recovered from; with it a recovery begins or goes on.", cause=T, failure_class=T, node=T, ranks=R
        ),
        "straggler": _event(
            "A rank's own part of a step takes longer than the others', again and again.",
            {"swap": T},
            rank=W,
            node=T,
            own_s=N,
            median_s=N,
        ),
        "straggler_over": _event("It does not any more.", rank=W, node=T),
        "no_progress": _event("No rank has come to a next step for so long: an inquiry begins.", stalled_s=N),
        "progress_again": _event("The inquiry is over: these ranks have moved.", ranks=R),
        "no_hang": _event("The inquiry has found nobody who is waited for.", reason=T),
        "hang": _event(
            "Who is waited for, in which call of which group, with its stacks.",
            {"rank": W, "node": T, "group": T, "call": W, "operation": T, "waiting": R, "stopped": F},
            stalled_s=N,
            reason=T,
            stacks=TT,
        ),
        "call_reports_missing": _event("These nodes have not said where their ranks are.", nodes=TT),
        "host_trouble": _event("A node's health reading is bad.", node=T, kind=T, text=T),
        "host_trouble_over": _event("It is good again.", node=T, kind=T),
    },
    "Recoveries": {
        "spare_chosen": _event("A spare gets the ranks of a lost node.", node=T, seat=W, reason=T),
        "ranks_killed": _event("Processes are ended, to be replaced.", node=T, ranks=R, reason=T),
        "vault_reports_missing": _event(
            "These nodes have not said what their memory holds; the plan is made without them.", nodes=TT
        ),
        "plan": _event(
            "Which step all ranks go on from; `sources`: how many ranks restore by which way (live | vault | replica | "
            "replica_at_home: a spare that kept it has taken over | elsewhere).",
            resume_step=W,
            sources=C,
            reason=T,
        ),
        "back_to_checkpoint": _event(
            "Memory has not survived: the persistent checkpoint is gone back to.", step=W, committed_step=W, reason=T
        ),
        "loop_body_lost": _event(
            "The loop body of a step cannot be run again for the ranks that have not been through it.", step=W, reason=T
        ),
        "excluded": _event(
            "The job goes on without these ranks from this step on (--on-loss exclude): it is not the unbroken run any more.",
            ranks=R,
            resume_step=W,
            reason=T,
        ),
        "not_excluded": _event("Without these ranks the job cannot go on: a node is wanted for them.", ranks=R, reason=T),
        "recovered": _event(
            "Every rank has made a new step. `total_s`: from the failure, as far as it is known; `groups`: how many process "
            "groups have stayed open (kept), and were opened.",
            **_RECOVERY,
        ),
        "restarted": _event("All ranks have new processes, from scratch.", **_RECOVERY),
        "spare_ready": _event(
            "Stand-ins wait on a spare for all ranks that it may get. `again`: they did before.", node=T, again=F
        ),
        "spare_not_ready": _event("So many wait only: it would take longer to recover on it.", node=T, standins=W),
        "gets_hot": _event("A spare builds and rehearses these ranks while others play them.", node=T, ranks=R),
        "is_hot": _event("It has: it can take them without further construction.", node=T, ranks=R, seconds=N),
        "not_hot": _event("It cannot; nothing else has changed.", node=T, ranks=R, reason=T),
        "drain": _event("A person wants a node free.", node=T, reason=T, ranks=R),
        "drain_undone": _event("It may have ranks again, or keeps them.", node=T, reason=T),
    },
    "Protection": {
        "edge_open": _event(
            "Replicas travel from that node to the holder by MPI, through these two processes.", node=T, holder=T, pids=R
        ),
        "edge_lost": _event("They travel by TCP until another pair of processes has met.", node=T, holder=T, text=T),
        "replicated_again": _event(
            "After a swap all that is unique has its replicas again. `exposed_s`: from the failure on.", step=W, exposed_s=N
        ),
        "unprotected": _event("States are not kept safe since that step.", rank=W, since_step=W, reason=T),
        "protected_again": _event("They are again, from that step on.", rank=W, step=W),
        "bad_copy": _event("A snapshot or replica is not what was written; it is not used.", node=T, kind=T, rank=W, step=W),
        "copies_contradict": _event("Two copies of what must be the same differ.", rank=W, peer=W, step=W),
        "state_differs": _event(
            "Ranks that must hold the same do not (--verify-every).", step=W, ranks=R, item=T, repair=T, good_step=W
        ),
        "checkpoint_requested": _event("A persistent checkpoint is asked for."),
        "checkpoint": _event("A persistent checkpoint is whole.", step=W, path=T, seconds=N),
        "checkpoint_found": _event("The job goes on from this one.", step=W, path=T),
        "checkpoint_failed": _event("It could not be written.", node=T, step=W, error=T),
    },
    "Supervisor": {
        "clocks_differ": _event(
            "After a recovery: by how much clocks of nodes are ahead of the supervisor's, from 5 ms on.", ahead_s=C
        ),
        "supervisor_started": _event("A supervisor has taken over where another one was lost.", term=W),
        "agent_back": _event("It has heard from this agent.", node=T),
        "relay_opened": _event("This node's agent speaks for others (--relay-above).", node=T),
        "relay_closed": _event("It does not any more; so many were behind it, and come back by themselves.", node=T, agents=W),
        "agents_gave_no_answer": _event("The job ends without having heard from these.", nodes=TT),
        "journal_unwritable": _event("The journal cannot be written: a supervisor that is lost now is not replaced.", reason=T),
        "journal_written_again": _event("It can be written again."),
    },
    "Drills and injections": {
        "injection_armed": _event("A failure is to be injected in that step.", kind=T, target=W, step=W),
        "injection": _event("It is being injected.", kind=T, target=W, node=T),
        "injection_failed": _event("It could not be.", kind=T, reason=T),
        "drill": _event("A drill by this way begins.", step=W, way=T),
        "drilled": _event("All ranks have come back by this way.", step=W, way=T),
        "drill_left_out": _event("This way is not there in this job.", step=W, way=T, reason=T),
        "drill_failed": _event("They have not come back by it.", step=W, way=T, reason=T),
    },
}
EVENTS = {name: kind for events in HEADINGS.values() for name, kind in events.items()}


def misfit(event: str, fields: Mapping[str, Any]) -> str:
    """Returns what of the event is not as the table says; "" where all is."""
    kind = EVENTS.get(event)
    if kind is None:
        return f"{event}: not in the table of events"
    known = {**kind.fields, **kind.sometimes}
    if missing := kind.fields.keys() - fields.keys():
        return f"{event}: {', '.join(sorted(missing))} missing"
    if unknown := fields.keys() - known.keys():
        return f"{event}: {', '.join(sorted(unknown))} not in the table of events"
    wrong = [name for name, value in fields.items() if not known[name].fits(value)]
    return f"{event}: {wrong[0]} = {fields[wrong[0]]!r} is no {known[wrong[0]].value}" if wrong else ""


_INTRODUCTION = f"""\
# The events of a job

Every change of a job is one line of JSON in the log folder's events.jsonl; `deadpool events [--follow] [--json]` prints them.
Generated from the program's own table (`python -m deadpool.supervisor.report.events`); tests hold this file, and every event of
the tests' jobs, against it. Version {VERSION}: within a version events and fields may be added; what is there keeps its name, its
type and its meaning.

Of every event:
"""


def reference() -> str:
    """Returns the text of docs/events.md."""
    lines = [_INTRODUCTION]
    lines += [
        "| field | | |",
        "|---|---|---|",
        *(f"| `{name}` | {kind.value} | {says} |" for name, (kind, says) in COMMON.items()),
    ]
    for heading, events in HEADINGS.items():
        lines += ["", f"## {heading}", "", "| event | | fields |", "|---|---|---|"]
        for name, event in events.items():
            fields = [f"`{field}` {kind.value}" for field, kind in event.fields.items()]
            fields += [f"`{field}` {kind.value}, sometimes" for field, kind in event.sometimes.items()]
            lines.append(f"| `{name}` | {event.says} | {'; '.join(fields)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(reference(), end="")
