"""The agent's side of its conversation with the supervisor (supervisor/model/session.py): it outlives both. Pure.

What is said is numbered and kept until the supervisor has acted on it, so that after any break it can be said again; orders are
numbered by the supervisor, and the number of the newest one that was obeyed goes out with Hello and every heartbeat.
Heartbeats are not kept. Supervisors have terms: one of a lower term than was ever heard of gives no orders here.
"""

from collections import deque
from dataclasses import replace

from deadpool.proto.messages import AgentMessage, Heartbeat, Hello, Welcome


class Conversation:
    """`obeyed`: number of the newest order. `term`: the highest that has welcomed this agent. `number`: of this conversation."""

    def __init__(self) -> None:
        self.obeyed = 0
        self.term = 0
        self.number = 0
        self._said = self._streams = 0
        self._unsent: deque[tuple[int, AgentMessage]] = deque()
        self._unconfirmed: deque[tuple[int, AgentMessage]] = deque()  # on their way, or lost

    def hello(self, hello: Hello, *, moves: bool = False) -> Hello:
        self._streams += 1
        return replace(hello, obeyed=self.obeyed, conversation=self.number, stream=self._streams, moves=moves)

    def welcomed(self, welcome: Welcome) -> bool:
        """A stream's first order. Returns False when this supervisor was superseded: nothing of it counts."""
        if welcome.term < self.term:
            return False
        self.term, self.number = welcome.term, welcome.conversation
        if welcome.resumed:
            self._confirmed(welcome.heard)
            self._unsent.extendleft(reversed(self._unconfirmed))
        else:  # this node was given up meanwhile; what it said until then was of no use
            self.obeyed = self._said = 0
            self._unsent = deque((self._number(message), message) for _, message in self._unsent)
        self._unconfirmed.clear()
        return True

    def ordered(self, number: int, heard: int) -> bool:
        """An order has come; it says as well what the supervisor has acted on. Returns whether it was not obeyed before."""
        self._confirmed(heard)
        if 0 < number <= self.obeyed:
            return False
        self.obeyed = max(self.obeyed, number)
        return True

    def say(self, message: AgentMessage) -> None:
        self._unsent.append((self._number(message), message))

    def next(self) -> tuple[int, AgentMessage] | None:
        """Returns what is to be sent next, with its number; it stays the next until `sent`."""
        if not self._unsent:
            return None
        number, message = self._unsent[0]
        return number, replace(message, obeyed=self.obeyed) if isinstance(message, Heartbeat) else message

    def sent(self) -> None:
        number, message = self._unsent.popleft()
        if number:
            self._unconfirmed.append((number, message))

    def _confirmed(self, heard: int) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] <= heard:
            self._unconfirmed.popleft()

    def _number(self, message: AgentMessage) -> int:
        if isinstance(message, Heartbeat):
            return 0
        self._said += 1
        return self._said
