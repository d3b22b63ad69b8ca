"""Which nodes live, as the job's events say: all that a launcher knows of nodes that are no children of its own."""

from typing import Any


class LiveNodes:
    """`now`: those that live. `ever`: since the job began. `over`: the job has ended."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.ever: set[str] = set()
        self.over = False

    def note(self, event: dict[str, Any]) -> None:
        """Takes in one event of events.jsonl; most are about something else."""
        node = str(event.get("node"))
        match event.get("event"):
            case "node_joined":
                self.now.add(node)
                self.ever.add(node)
            case "node_lost":
                self.now.discard(node)
            case "job_ended":
                self.now.clear()
                self.over = True
