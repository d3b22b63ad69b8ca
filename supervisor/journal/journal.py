"""The journal: every event and deadline that the core has acted on, one JSON line each, on disk before its commands are sent.

Replaying it through a fresh core gives an equal one. Heartbeats are written only when something else follows: of each node the
last one before it, for the earlier ones leave no trace in the core, all in one line (heartbeat_columns.py). One that has commands
is written like any other event.
"""

import base64
import contextlib
import dataclasses
import json
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deadpool.host.console import tell
from deadpool.proto import convert
from deadpool.proto.generated import agent_pb2
from deadpool.proto.messages import Heartbeat
from deadpool.supervisor.core import Job
from deadpool.supervisor.journal.heartbeat_columns import HeartbeatColumns, wire_of
from deadpool.supervisor.model.commands import Command
from deadpool.supervisor.model.events import Event, FromAgent

BATCH_MAX = 256
_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in typing.get_args(Event)}


class LineFile:
    """A file that grows by whole lines, each with the operating system when `write` returns; with `sync` on the disk.

    A full disk ends nothing: what could not be written waits here, and is written before anything else once there is room.
    `trouble`: why lines wait, "" when none do.
    """

    def __init__(self, path: Path, *, fresh: bool = False, sync: bool = False) -> None:
        self.path = path
        self.trouble = ""
        self._sync = sync
        self._file = path.open("wb" if fresh else "ab", buffering=0)
        self._bytes = self._file.seek(0, os.SEEK_END)
        self._waiting: list[bytes] = []

    def write(self, *lines: bytes) -> None:
        """Each without its end."""
        for line in lines:
            self._waiting += line, b"\n"
        if not self._waiting:
            return
        try:
            self._write(b"".join(self._waiting))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._bytes)  # no half line stays, to be glued to the next
                self._file.seek(self._bytes)
            if not self.trouble:
                tell(f"deadpool: {self.path}: {error}; the job goes on, its lines wait")
            self.trouble = str(error)
            return
        if self.trouble:
            tell(f"deadpool: {self.path}: is written again")
        self.trouble = ""
        self._waiting.clear()

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        if self._sync:
            os.fsync(self._file.fileno())
        self._bytes += len(data)


class SupersededError(Exception):
    """Another supervisor has claimed a higher term: this one gives no more orders."""


class Journal:
    """`job` does what the events say; `handle` and `tick` return its commands once what led to them is on disk.

    `is_over()` is asked after each line that was written, before anything is done (proto/terms.py says why): SupersededError.
    """

    def __init__(self, job: Job, file: LineFile, *, is_over: Callable[[], bool] = lambda: False) -> None:
        self.job = job
        self._file = file
        self._is_over = is_over
        self._heartbeats = HeartbeatColumns()

    @property
    def trouble(self) -> str:
        return self._file.trouble

    def handle(self, *events: Event, now_s: float) -> list[Command]:
        """What came together is written together: BATCH_MAX at most."""
        commands, lines = [], []
        for event in events:
            follows = self.job.handle(event, now_s=now_s)
            if isinstance(event, FromAgent) and isinstance(event.message, Heartbeat) and not follows:
                self._heartbeats.keep(event, now_s)
            else:
                lines += [*self._heartbeats.take(now_s=now_s), event_line(event, now_s=now_s)]
            commands += follows
        if lines:
            self._write(*lines)
        return commands

    def tick(self, *, now_s: float) -> list[Command]:
        commands = self.job.tick(now_s=now_s)
        if commands:
            self._write(*self._heartbeats.take(now_s=now_s), _line({"now_s": now_s, "tick": True}))
        return commands

    def _write(self, *lines: bytes) -> None:
        self._file.write(*lines)
        if self._is_over():
            raise SupersededError


def event_line(event: Event, *, now_s: float) -> bytes:
    """Returns the journal's line for an event."""
    fields: dict[str, Any]
    if isinstance(event, FromAgent):
        fields = {
            "event_id": event.event_id,
            "node_id": event.node_id,
            "number": event.number,
            "message": type(event.message).__name__,
            "wire": base64.b64encode(event.wire or wire_of(event)).decode(),
        }
    else:
        fields = dataclasses.asdict(event)
    return _line({"now_s": now_s, "event": {"type": type(event).__name__, **fields}})


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode()


def parse_event(fields: dict[str, Any]) -> Event:
    """Returns the event that `event_line` wrote."""
    kind = _KINDS[fields.pop("type")]
    if kind is FromAgent:
        fields["wire"] = base64.b64decode(fields["wire"])
        fields["message"] = convert.decode_agent_message(agent_pb2.AgentMessage.FromString(fields["wire"]))
    return kind(**fields)
