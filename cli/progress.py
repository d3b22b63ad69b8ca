"""What a person at the launcher's console is told of a job: its events, a calm line for each that matters."""

import json
from pathlib import Path
from typing import Any


class Progress:
    """Follows events.jsonl; the file may not exist yet, and its last line may be half written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Returns the lines to show for what was written since the last call."""
        return [line for event in self.new_events() if (line := describe(event))]

    def new_events(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        self._offset += len(text)
        *lines, self._rest = (self._rest + text).split(b"\n")
        return [json.loads(line) for line in lines]


def describe(event: dict[str, Any]) -> str:
    """Returns the line for one event, "" for those that a person need not see."""
    return ""
