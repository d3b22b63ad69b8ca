"""What a new supervisor knows of its job: the journals of the terms before it, read to the last whole line.

Each term's journal begins with a line of its own: which journal it follows and how far that was read, so that whatever a
superseded supervisor still writes after that is in nobody's past. It also says how the job's clock goes on: it never jumps back,
whichever machine the next supervisor runs on.
"""

import json
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.proto.config import JobConfig
from deadpool.proto.messages import Heartbeat
from deadpool.proto.terms import journal_path, newest_term
from deadpool.supervisor.core import Job
from deadpool.supervisor.journal.heartbeat_columns import parse_heartbeats
from deadpool.supervisor.journal.journal import BATCH_MAX, parse_event
from deadpool.supervisor.model.commands import Command, Note
from deadpool.supervisor.model.events import Event, FromAgent
from deadpool.supervisor.report.pulse import Pulse

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True, kw_only=True)
class ReplayedJob:
    """`last_s`, `last_event_id`: of the newest line. `notes`: of the newest lines; they may not have got into the events."""

    job: Job
    pulse: Pulse = field(default_factory=Pulse)
    last_s: float | None = None
    last_event_id: int = 0
    events_at: int = 0  # size of events.jsonl when the job began
    _notes: deque[list[Note]] = field(default_factory=lambda: deque(maxlen=BATCH_MAX))  # of each line

    def act(self, entry: dict[str, Any]) -> None:
        """One line of the journal."""
        now_s = float(entry["now_s"])
        if "heartbeats" in entry:
            for heartbeat, at_s in parse_heartbeats(entry["heartbeats"]):
                self._handle(heartbeat, at_s)
        elif "event" in entry:
            commands = self._handle(parse_event(entry["event"]), now_s)
            self._notes.append([command for command in commands if isinstance(command, Note)])
        else:
            commands = self.job.tick(now_s=now_s)
            self._notes.append([command for command in commands if isinstance(command, Note)])
        self.last_s = now_s

    @property
    def notes(self) -> list[Note]:
        return [note for of_line in self._notes for note in of_line]

    def _handle(self, event: Event, now_s: float) -> list[Command]:
        self.last_event_id = max(self.last_event_id, event.event_id)
        if isinstance(event, FromAgent) and isinstance(event.message, Heartbeat):
            self.pulse.heard(event.node_id, event.message, now_s=now_s)
        return self.job.handle(event, now_s=now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The job's monotonic seconds: this machine's and an offset, 0 unless the job has come here from another one."""

    offset_s: float

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


def read_past(folder: Path, term: int, config: JobConfig, *, events_at: int) -> tuple[ReplayedJob, Clock, dict[str, Any]]:
    """Returns what came before this term, the job's clock from now on, and the first entry of this term's journal."""
    past = ReplayedJob(job=Job(config), events_at=events_at)
    before = newest_journal(folder, term)
    follows = None if before == 0 else {"term": before, "bytes": whole_bytes(journal_path(folder, before))}
    head: dict[str, Any] = {}
    if follows is not None:
        for path, size in chain(folder, before, follows["bytes"]):
            for entry in entries(path, size):
                if "term" in entry:
                    head = entry
                else:
                    past.act(entry)
        past.events_at = head["events_at"]
    clock = Clock(offset_s=_offset_s(head, past.last_s))
    first = {
        "term": term,
        "follows": follows,
        "boot_id": _BOOT_ID.read_text().strip(),
        "offset_s": clock.offset_s,
        "now_s": clock(),
        "wall_s": time.time(),
        "events_at": past.events_at,
    }
    return past, clock, first


def newest_journal(folder: Path, below: int) -> int:
    """Returns the highest term below that one whose journal has a first line; 0 when there is none."""
    terms = range(min(below - 1, newest_term(folder)), 0, -1)
    return next((term for term in terms if whole_bytes(journal_path(folder, term))), 0)


def chain(folder: Path, term: int, size: int) -> list[tuple[Path, int]]:
    """Returns (journal, bytes that count) from the job's first term to this one."""
    found = []
    while True:
        path = journal_path(folder, term)
        found.append((path, size))
        follows = json.loads(path.read_bytes().split(b"\n", 1)[0])["follows"]
        if follows is None:
            return found[::-1]
        term, size = follows["term"], follows["bytes"]


def entries(path: Path, size: int) -> list[dict[str, Any]]:
    """Returns the lines within the first `size` bytes, up to the first that cannot be read: what follows is not trusted."""
    found: list[dict[str, Any]] = []
    for line in path.read_bytes()[:size].splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not isinstance(entry, dict) or "now_s" not in entry:
            break
        found.append(entry)
    return found


def whole_bytes(path: Path) -> int:
    """Returns the length of the file up to its last whole line; a torn one after that is as if never written."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def _offset_s(head: dict[str, Any], last_s: float | None) -> float:
    if last_s is None:
        return 0.0
    if head["boot_id"] == _BOOT_ID.read_text().strip():
        return float(head["offset_s"])
    elapsed_s = time.time() - float(head["wall_s"]) - (last_s - float(head["now_s"]))
    return last_s + max(0.0, elapsed_s) - time.monotonic()
