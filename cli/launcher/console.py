"""What the launcher's console shows of a job: a calm line for each event that matters."""

import json
from pathlib import Path
from typing import Any

from deadpool.cli.places import counted, numbered, place
from deadpool.proto.messages import NO_STEP


class Progress:
    """Follows events.jsonl from where it ends now; the file may not exist yet, and its last line may be half written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Returns the lines to show for what was written since the last call."""
        return [line for event in self.new_events() if (line := describe(event))]

    def new_events(self) -> list[dict[str, Any]]:
        if not self._path.exists() or self._path.stat().st_size == self._offset:
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        self._offset += len(text)
        *lines, self._rest = (self._rest + text).split(b"\n")
        return [event for line in lines if (event := _parse(line))]


def describe(event: dict[str, Any]) -> str:
    """Returns the line for one event, "" for those that a person need not see. Of a missing field it shows a question mark."""

    def of(name: str) -> Any:
        return event.get(name, "?")

    match event.get("event"):
        case "job_ended" if event.get("reason", "").startswith("SIG"):
            return f"{event['reason']}: stopping"
        case "started":
            return "training"
        case "injection":
            return f"injected: {of('kind')} {of('target')}"
        case "failure":
            return f"{of('cause')}: {of('failure_class')}"
        case "node_lost" if "spares_left" in event:
            return f"spare {of('node')} lost: {of('reason')}; {counted(event['spares_left'], 'spare')} left"
        case "node_faulty":
            return f"{of('node')} gets no ranks any more: {of('cause')}"
        case "spare_not_ready":
            return f"spare {of('node')} is not ready: {counted(of('standins'), 'stand-in')} waiting there"
        case "spare_ready" if event.get("again"):
            return f"spare {of('node')} is ready again"
        case "straggler":
            after = f": {event['swap']}" if event.get("swap") else ""
            return (
                f"rank {of('rank')} on {of('node')} is slow: its own part of a step takes {of('own_s')} s, "
                f"the median is {of('median_s')} s{after}"
            )
        case "gets_hot":
            return f"{of('node')} builds {numbered(event.get('ranks', ()))} beside those that train"
        case "not_hot":
            return f"{of('node')} cannot take {numbered(event.get('ranks', ()))}: {of('reason')}"
        case "drain":
            return f"{of('node')} is drained" + (f" ({event['reason']})" if event.get("reason") else "")
        case "drain_undone":
            return f"{of('node')} is not drained any more: {of('reason')}"
        case "drill":
            return f"drill: back from step {of('step')} by one step: {of('way')}"
        case "drill_left_out" | "drill_failed":
            return f"drill: {of('way')} is not tried: {of('reason')}"
        case "not_excluded":
            return f"{numbered(event.get('ranks', ()))} cannot be excluded: {of('reason')}"
        case "waiting_for_node":
            wanted = f" for {numbered(event['ranks'])}" if event.get("ranks") else ""
            return f"no spare is left: waiting for a node{wanted}"
        case "replicated_again":
            exposed_s = event.get("exposed_s")
            return f"replicated again from step {of('step')} on: exposed for {exposed_s:.1f} s" if exposed_s is not None else ""
        case "edge_lost":
            return str(of("text"))
        case "unprotected":
            return f"unprotected since step {of('since_step')}: rank {of('rank')}: {of('reason')}"
        case "protected_again":
            return f"rank {of('rank')} is protected again from step {of('step')} on"
        case "state_differs":
            who = numbered(event.get("ranks", ()))
            return f"{who} differ in {of('item')} at step {of('step')} (silent corruption; repair: {of('repair')})"
        case "checkpoint_requested":
            return "a checkpoint was asked for"
        case "checkpoint":
            return f"checkpoint of step {of('step')}: {of('path')}"
        case "back_to_checkpoint":
            return f"memory holds no whole state any more: back to the checkpoint of step {of('step')}"
        case "checkpoint_failed":
            return f"no checkpoint of step {of('step')}: {of('error')}"
        case "host_trouble":
            return f"{of('node')}: {of('text')}"
        case "resized":
            return f"the job has {counted(of('nnodes'), 'node')} from now on"
        case "restarted":
            went = f"{_place(event)}, " if event.get("spare") else ""
            begin = f"from step {event['resume_step']}" if event.get("resume_step", NO_STEP) > 0 else "anew"
            return f"restarted in {_seconds(event)}: {went}all ranks begin {begin}"
        case "recovered":
            again = of("steps_reexecuted")
            steps = f"{counted(again, 'step')} again"
            done = "moved" if event.get("failure_class") == "planned" else "recovered"
            return f"{done} in {_seconds(event)}: {_place(event)}, resumed at step {of('resume_step')}, {steps}"
    return ""


def _parse(line: bytes) -> dict[str, Any]:
    """Returns the event; an empty one for a line that a full disk or a killed writer has cut: no reason to end a job."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _place(event: dict[str, Any]) -> str:
    spare, ranks = event.get("spare", ""), event.get("ranks", ())
    return place(spare, event.get("moved", ranks if spare else ()), ranks, event.get("excluded", ()))


def _seconds(event: dict[str, Any]) -> str:
    total_s = event.get("total_s")
    return f"{total_s:.2f} s" if isinstance(total_s, int | float) else "? s"
