"""events.jsonl: one line per change, for people and scripts; whoever follows gets the past lines and those to come."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from deadpool.supervisor.journal.journal import LineFile
from deadpool.supervisor.model.commands import Note
from deadpool.supervisor.report.events import VERSION

DETAILS = {"failure": "failure_class", "injection": "kind"}  # events that are counted by what one of their fields says


class EventLog:
    """`past`: the job's lines so far, written under an earlier supervisor.

    `counts`: how many events there were, by name and by what the field of DETAILS said ("" for those that are not there).
    """

    def __init__(self, file: LineFile, past: Iterable[str] = ()) -> None:
        self._file = file
        self._lines = list(past)
        self.counts = Counter(_kind(json.loads(line)) for line in self._lines)
        self._grown = asyncio.Event()  # replaced at each growth; set once for those who wait on the old one
        self._closed = False

    def add(self, note: Note) -> None:
        wall = datetime.now(UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": wall,
            "event": note.event,
            "generation": note.generation,
            "caused_by": note.cause,
            **note.fields,
            "version": VERSION,
        }
        self._lines.append(json.dumps(fields))
        self.counts[_kind(fields)] += 1
        self._file.write(self._lines[-1].encode())
        self._wake()

    def add_if_missing(self, notes: Iterable[Note]) -> None:
        """What the last supervisor decided, but may not have lived to write down."""
        known = {(event["event"], event["caused_by"]) for event in map(json.loads, self._lines)}
        for note in notes:
            if (note.event, note.cause) not in known:
                self.add(note)

    def close(self) -> None:
        """No line comes any more: followers end."""
        self._closed = True
        self._wake()

    @property
    def count(self) -> int:
        return len(self._lines)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def some(self, first: int, most: int) -> list[str]:
        """Returns so many lines at most, from that one on."""
        return self._lines[first : first + most]

    async def grown(self, known: int, timeout_s: float) -> bool:
        """Returns whether there are more lines than are known, or the log is closed; waits for it so long."""
        if len(self._lines) <= known and not self._closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._grown.wait(), timeout_s)
        return len(self._lines) > known or self._closed

    async def lines(self, *, follow: bool) -> AsyncIterator[str]:
        """Yields every line so far and, with `follow`, those to come until the end of the job."""
        at = 0
        while True:
            while at < len(self._lines):
                yield self._lines[at]
                at += 1
            if not follow or self._closed:
                return
            await self._grown.wait()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


def _kind(event: Mapping[str, Any]) -> tuple[str, str]:
    return event["event"], str(event.get(DETAILS.get(event["event"], ""), ""))
