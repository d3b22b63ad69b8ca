"""The journal: every event and deadline that the core has acted on, one JSON line each, on disk before its commands are sent.

Replaying it through a fresh core gives an equal one. Beats are written only when something else follows: of each node the last
one before it, for the earlier ones leave no trace in the core; one that has commands is written like any other event.
"""

import dataclasses
import json
import sys
import typing
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from deadpool.proto import agent_supervisor_pb2, convert
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import Beat
from deadpool.supervisor.commands import Command
from deadpool.supervisor.core import Job
from deadpool.supervisor.events import Event, FromAgent

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in typing.get_args(Event)}


class LineFile:
    """A file that grows by whole lines, each with the operating system when `write` returns. A full disk costs the file only."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self._file = path.open("wb" if fresh else "ab", buffering=0)
        self._broken = False

    def write(self, *lines: str) -> None:
        if self._broken or not lines:
            return
        try:
            self._file.write("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            self._broken = True
            print(f"deadpool: {self.path}: {error}; nothing more is written there", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._file.close()


class Journal:
    """`job` does what the events say; `handle` and `tick` return its commands once what led to them is on disk."""

    def __init__(self, job: Job, file: LineFile) -> None:
        self.job = job
        self._file = file
        self._beats: dict[str, str] = {}  # the last line of each node's beats that is not written yet

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        commands = self.job.handle(event, now_s=now_s)
        if isinstance(event, FromAgent) and isinstance(event.message, Beat) and not commands:
            self._beats[event.node_id] = event_line(event, now_s=now_s)
        else:
            self._write(event_line(event, now_s=now_s))
        return commands

    def tick(self, *, now_s: float) -> list[Command]:
        commands = self.job.tick(now_s=now_s)
        if commands:
            self._write(json.dumps({"now_s": now_s, "tick": True}))
        return commands

    def _write(self, line: str) -> None:
        self._file.write(*self._beats.values(), line)
        self._beats.clear()


def event_line(event: Event, *, now_s: float) -> str:
    """Returns the journal's line for an event."""
    fields: dict[str, Any]
    if isinstance(event, FromAgent):
        wire = convert.encode_agent_message(event.message)
        message = json_format.MessageToDict(wire, preserving_proto_field_name=True)
        fields = {"event_id": event.event_id, "node_id": event.node_id, "message": message, "number": event.number}
    else:
        fields = dataclasses.asdict(event)
    return json.dumps({"now_s": now_s, "event": {"type": type(event).__name__, **fields}}, separators=(",", ":"))


def parse_event(fields: dict[str, Any]) -> Event:
    """Returns the event that `event_line` wrote."""
    kind = _KINDS[fields.pop("type")]
    if kind is FromAgent:
        wire = json_format.ParseDict(fields["message"], agent_supervisor_pb2.AgentMessage())
        fields["message"] = convert.decode_agent_message(wire)
    return kind(**fields)


def replay(path: Path, config: JobConfig) -> Job:
    """Returns the job as it was when the journal's last whole line was written; a torn last line is left out."""
    job = Job(config)
    text = path.read_text(errors="replace")
    for line in text[: text.rfind("\n") + 1].splitlines():
        entry = json.loads(line)
        if "event" in entry:
            job.handle(parse_event(entry["event"]), now_s=entry["now_s"])
        else:
            job.tick(now_s=entry["now_s"])
    return job
