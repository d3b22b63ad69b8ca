"""Heartbeats in the journal: of each node the last one since the line before, all in one line, in columns.

There may be thousands, megabytes in all, and orders wait for the line: what it holds is kept as it will be written, in columns,
a place for each node, and is put together by one step for each column.
"""

import base64
import json
from array import array
from collections.abc import Iterable
from itertools import compress
from typing import Any

from deadpool.proto import convert
from deadpool.proto.generated import agent_pb2
from deadpool.supervisor.model.events import FromAgent


class HeartbeatColumns:
    """Those that are not written yet. `_wires`: as they came, in base64; b"" where nothing waits."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._nodes: list[str] = []
        self._at_s = array("d")
        self._event_ids = array("q")
        self._wires: list[bytes] = []
        self._waiting = False

    def keep(self, event: FromAgent, now_s: float) -> None:
        """In place of the node's last one, if that is not written yet."""
        place = self._places.get(event.node_id)
        if place is None:
            place = self._places[event.node_id] = len(self._nodes)
            self._nodes.append(event.node_id)
            self._at_s.append(0.0)
            self._event_ids.append(0)
            self._wires.append(b"")
        self._at_s[place], self._event_ids[place] = now_s, event.event_id
        self._wires[place] = base64.b64encode(event.wire or wire_of(event))
        self._waiting = True

    def take(self, *, now_s: float) -> list[bytes]:
        """Returns the line for those that wait, if there are any."""
        if not self._waiting:
            return []
        waiting, self._wires, self._waiting = self._wires, [b""] * len(self._nodes), False
        columns = {
            "at_s": _packed("d", compress(self._at_s, waiting)),
            "event_ids": _packed("q", compress(self._event_ids, waiting)),
            "nodes": list(compress(self._nodes, waiting)),
        }
        head = json.dumps({"now_s": now_s, "heartbeats": columns}, separators=(",", ":")).encode()
        wires = list(filter(None, waiting))
        wires[0] = b'%b,"wires":["%b' % (head[:-2], wires[0])
        wires[-1] += b'"]}}'
        return [b'","'.join(wires)]


def parse_heartbeats(columns: dict[str, Any]) -> list[tuple[FromAgent, float]]:
    """Returns what such a line says in the order in which it came, each heartbeat with the time at which it was heard."""
    at_s, event_ids, found = _unpacked("d", columns["at_s"]), _unpacked("q", columns["event_ids"]), []
    for heard_s, event_id, node_id, wire in zip(at_s, event_ids, columns["nodes"], columns["wires"], strict=True):
        message = convert.decode_agent_message(agent_pb2.AgentMessage.FromString(base64.b64decode(wire)))
        found.append((FromAgent(event_id=event_id, node_id=node_id, message=message), heard_s))
    return sorted(found, key=lambda each: each[0].event_id)


def wire_of(event: FromAgent) -> bytes:
    """Returns the message as it would have come over the wire."""
    return bytes(convert.encode_agent_message(event.message, number=event.number).SerializeToString())


def _packed(kind: str, values: Iterable[float]) -> str:
    return base64.b64encode(array(kind, values).tobytes()).decode()


def _unpacked(kind: str, text: str) -> "array[Any]":
    return array(kind, base64.b64decode(text))
