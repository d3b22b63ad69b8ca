"""Which agents speak for others, and who speaks through whom. Pure: streams that open and end in, routes for agents out.

Above so many agents each is sent to a relay: an agent that speaks for GROUP others on one stream. The first agents that no relay
has room for become relays themselves. Nothing of this is the job's state: a supervisor that takes over learns it from who comes,
and through whom. An agent that comes back by itself has missed its relay, and is not sent to that one again.
"""

import math

from deadpool.proto.messages import Route

GROUP = 64  # agents behind one relay


class Relays:
    """`above`: so many agents speak for themselves. Agents and relays are known by their nodes' names."""

    def __init__(self, *, above: int, group: int = GROUP) -> None:
        self._above, self._group = above, group
        self._through: dict[str, str] = {}  # every agent that has a stream -> its relay, "" for itself
        self._doors: dict[str, str] = {}  # relay -> where agents come to it; "" until it has said so
        self._groups: dict[str, set[str]] = {}  # relay -> who was sent to it, or has come by itself
        self._waiting: dict[str, float] = {}  # for room, in order -> the node's index
        self._missed: dict[str, set[str]] = {}  # agent -> relays that it has come back from

    def joined(self, node_id: str, index: int = -1, *, through: str = "") -> list[tuple[str, Route]]:
        """The agent has a new stream, through that relay or of its own. Returns who is to be routed how.

        `index`: of its node at launch, -1 when unknown; the lowest of those who wait becomes the relay.
        """
        sent_to = next((relay for relay, group in self._groups.items() if node_id in group), "")
        if sent_to and sent_to != through:
            self._groups[sent_to].discard(node_id)
            self._missed.setdefault(node_id, set()).add(sent_to)
        self._through[node_id] = through
        self._waiting.pop(node_id, None)
        if through:
            self._groups.setdefault(through, set()).add(node_id)
            return []
        if node_id in self._doors:  # a new stream of a relay: its old door went with the old stream
            del self._doors[node_id]
        self._waiting[node_id] = index if index >= 0 else math.inf
        return self._settle()

    def left(self, node_id: str) -> None:
        """The agent is gone."""
        self._through.pop(node_id, None)
        self._waiting.pop(node_id, None)
        self._missed.pop(node_id, None)
        for group in self._groups.values():
            group.discard(node_id)
        self.closed(node_id)

    def opened(self, relay: str, door: str) -> list[tuple[str, Route]]:
        """The relay's door is open, and its stream for the group."""
        for group in self._groups.values():  # it may have been sent to another one meanwhile
            group.discard(relay)
        self._doors[relay] = door
        self._groups.setdefault(relay, set())
        self._waiting.pop(relay, None)
        return self._settle()

    def closed(self, relay: str) -> None:
        """It is no relay any more; whoever was behind it comes back."""
        self._doors.pop(relay, None)
        self._groups.pop(relay, None)

    def _settle(self) -> list[tuple[str, Route]]:
        """Returns the routes for those who wait, as far as there is room. Below the limit nobody is asked for anything."""
        routes: list[tuple[str, Route]] = []
        if len(self._through) <= self._above:
            return routes
        room = {relay: self._group - len(self._groups[relay]) for relay, door in self._doors.items() if door}
        room = {relay: left for relay, left in room.items() if left > 0}
        for node_id in list(self._waiting) if room else ():
            missed = self._missed.get(node_id, ())
            relay = next((each for each in room if each not in missed), "")
            if relay:
                del self._waiting[node_id]
                self._groups[relay].add(node_id)
                routes.append((node_id, Route(through=self._doors[relay])))
                room[relay] -= 1
                if not room[relay]:
                    del room[relay]
        asked = sum(not door for door in self._doors.values())
        while asked * self._group < len(self._waiting) - 1:
            asked += 1
            node_id = min(self._waiting, key=lambda each: self._waiting[each])
            del self._waiting[node_id]
            self._doors[node_id] = ""
            routes.append((node_id, Route(relays=True)))
        return routes
