"""Heartbeats in the journal: of each node the last one since the line before, all in one line, in columns.

There may be thousands, megabytes in all, and orders wait for the line: what is long in it is kept as it will be written, and the
rest is put together by one step for each column. Or there are few, again and again, while nodes say what is not a heartbeat:
then a line takes no longer than those few.
"""

import base64
import json
from array import array
from collections.abc import Iterable
from typing import Any

from deadpool.proto import convert
from deadpool.proto.generated import agent_pb2
from deadpool.supervisor.model.events import FromAgent


class HeartbeatColumns:
    """Those that are not written yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, int, bytes]] = {}  # node -> when, event, the message in base64

    def keep(self, event: FromAgent, now_s: float) -> None:
        """In place of the node's last one, if that is not written yet."""
        self._waiting[event.node_id] = now_s, event.event_id, base64.b64encode(event.wire or wire_of(event))

    def take(self, *, now_s: float) -> list[bytes]:
        """Returns the line for those that wait, if there are any."""
        if not self._waiting:
            return []
        at_s, event_ids, encoded = zip(*self._waiting.values(), strict=True)
        columns = {"at_s": _packed("d", at_s), "event_ids": _packed("q", event_ids), "nodes": list(self._waiting)}
        self._waiting = {}
        head = json.dumps({"now_s": now_s, "heartbeats": columns}, separators=(",", ":")).encode()
        wires = list(encoded)
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
