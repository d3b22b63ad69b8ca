"""The nodes that a launcher has not started as children of its own: what it knows of them is what the job's events say."""

from typing import Any


class NodesSeen:
    """`live`: now. `ever`: since the job began. `over`: the job has ended."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.ever: set[str] = set()
        self.over = False

    def heard(self, event: dict[str, Any]) -> None:
        """Takes in one event of events.jsonl; most are about something else."""
        node = str(event.get("node"))
        match event.get("event"):
            case "node_joined":
                self.live.add(node)
                self.ever.add(node)
            case "node_lost":
                self.live.discard(node)
            case "job_ended":
                self.live.clear()
                self.over = True
