"""Which nodes have been silent too long? Pure: heartbeats and checks with their time in, silent nodes out.

Silence proves nothing while the supervisor itself was away (busy, suspended): its clock here stands still for as long as a check
comes late, so that a node is lost only after `timeout_s` in which the supervisor was really listening.

The timeout adapts to what is seen: a node that was quiet for g seconds within the last minute and came back by itself (a loaded
machine) is given up only after 1.5 g, at most three timeouts. On a quiet machine g is the time between two heartbeats, and the
timeout is what was asked for; so it may be set down to a second or less, with three heartbeats in it.

Nodes that are expected back, from a supervisor or a relay that was lost, are waited for as long as others are still coming back:
thousands of them take as long as they take.

The silence of a node that speaks through a relay proves nothing while the relay itself is silent. A relay is given up after the
timeout; then those behind it have to come back by themselves.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

_CHECKS_PER_TIMEOUT = 12  # a check that comes later than that was late by the supervisor's own fault
_AFTER_S = 0.001  # the moment in which a node's time is over is looked at just after it
_MARGIN = 1.5  # on top of the longest pause that was seen to end by itself
_TIMEOUTS_MAX = 3.0  # a node whose pauses grow and grow is lost in the end
_MEMORY_S = 60.0
_RETURN_TIMEOUTS = 10.0  # a node that is expected back is waited for so long at most, whoever else still comes
_STALE = 0.5  # of the timeout: a relay that is silent for longer explains the silence of those behind it, until it is given up


@dataclass(slots=True)
class _Pauses:
    """One node's. `longest`: (when it ended, pause) of those that count, falling: the first is the longest of the last minute."""

    heard_s: float
    longest: deque[tuple[float, float]] = field(default_factory=deque)

    def heard(self, now_s: float, *, counts_from_s: float) -> None:
        """A pause that is shorter than `counts_from_s` changes nothing."""
        pause_s, self.heard_s = now_s - self.heard_s, now_s
        if pause_s < counts_from_s:
            return
        while self.longest and self.longest[-1][1] <= pause_s:
            self.longest.pop()
        self.longest.append((now_s, pause_s))

    def longest_s(self, now_s: float) -> float:
        while self.longest and self.longest[0][0] < now_s - _MEMORY_S:
            self.longest.popleft()
        return self.longest[0][1] if self.longest else 0.0


class HeartbeatMonitor:
    def __init__(self, *, timeout_s: float, now_s: float) -> None:
        self.timeout_s = timeout_s
        self.interval_s = timeout_s / _CHECKS_PER_TIMEOUT
        self.lag_s = 0.0  # how long the supervisor was away, all together
        self._nodes: dict[str, _Pauses] = {}  # in attended time
        self._through: dict[str, str] = {}  # node -> its relay
        self._relays: dict[str, float] = {}  # when each was heard, in attended time
        self._expected: dict[str, float] = {}  # who is not back yet -> since when
        self._back_s = -math.inf  # when the last one came back
        self._due_s = now_s + self.interval_s
        self._over_s = math.inf  # when the next node's time is over, if that is before the next check
        self._now_s = now_s
        self._counts_from_s = timeout_s / _MARGIN  # a pause

    def heard(self, node_id: str, *, now_s: float, ago_s: float = 0.0) -> None:
        """Any message of the node counts, not only heartbeats. `ago_s`: since its relay has heard it."""
        at_s, known = self.attended_s(now_s) - ago_s, self._nodes.get(node_id)
        if self._expected.pop(node_id, None) is not None:  # how long that took says nothing of the node
            self._back_s, known = at_s, None
        if known is None:
            self._nodes[node_id] = _Pauses(at_s)
        elif not ago_s or at_s > known.heard_s:
            known.heard(at_s, counts_from_s=self._counts_from_s)

    def heard_by_relay(self, nodes: Iterable[tuple[str, float]], *, now_s: float) -> None:
        """(node, seconds since its relay has heard it) of each."""
        attended_s, counts_from_s = self.attended_s(now_s), self._counts_from_s
        for node_id, ago_s in nodes:  # thousands in a second
            known = self._nodes.get(node_id)
            if known is None or node_id in self._expected:
                self.heard(node_id, now_s=now_s, ago_s=ago_s)
            elif (at_s := attended_s - ago_s) > known.heard_s:
                known.heard(at_s, counts_from_s=counts_from_s)

    def expect(self, node_id: str, *, now_s: float, within_s: float) -> None:
        """A node that is known to a new supervisor has this long to come back before its silence counts."""
        self._expected[node_id] = self.attended_s(now_s)
        self._nodes[node_id] = _Pauses(self._expected[node_id] + within_s)

    def forget(self, node_id: str) -> None:
        """The node is gone, or known to be stopping."""
        self._nodes.pop(node_id, None)
        self._through.pop(node_id, None)
        self._expected.pop(node_id, None)

    def speaks_through(self, node_id: str, relay: str) -> None:
        """ "": on its own stream."""
        self._through[node_id] = relay

    def relay_heard(self, relay: str, *, now_s: float) -> None:
        self._relays[relay] = self.attended_s(now_s)

    def relay_gone(self, relay: str) -> None:
        self._relays.pop(relay, None)

    def silent_relays(self, *, now_s: float) -> list[str]:
        """Returns those to be given up."""
        attended_s = self.attended_s(now_s)
        return [relay for relay, heard_s in self._relays.items() if attended_s - heard_s > self.timeout_s]

    def limit_s(self, node_id: str, *, now_s: float) -> float:
        """Returns after how much silence this node is given up."""
        longest_s = self._nodes[node_id].longest_s(self.attended_s(now_s))
        return min(max(self.timeout_s, _MARGIN * longest_s), _TIMEOUTS_MAX * self.timeout_s)

    def next_check_s(self) -> float:
        return min(self._due_s, self._over_s)

    def check(self, *, now_s: float) -> list[tuple[str, float]]:
        """Returns (node, seconds of silence) for each that is silent too long; it is forgotten with that."""
        attended_s = self.attended_s(now_s)
        self._due_s = max(self._due_s, now_s + self.interval_s)
        quiet_s = attended_s - self.timeout_s + self.interval_s  # who was heard since then is neither silent now nor soon
        ages = [(node_id, attended_s - node.heard_s) for node_id, node in self._nodes.items() if node.heard_s < quiet_s]
        left = [(self.limit_s(node_id, now_s=now_s) - age_s, node_id, age_s) for node_id, age_s in ages]
        stale = {relay for relay, heard_s in self._relays.items() if attended_s - heard_s > _STALE * self.timeout_s}
        silent = [
            (node_id, age_s)
            for left_s, node_id, age_s in left
            if left_s < 0 and self._through.get(node_id) not in stale and not self._may_come(node_id, attended_s)
        ]
        for node_id, _ in silent:
            self.forget(node_id)
        soon_s = min((left_s for left_s, *_ in left if left_s >= 0), default=math.inf)
        self._over_s = now_s + soon_s + _AFTER_S if soon_s < self.interval_s else math.inf
        return silent

    def _may_come(self, node_id: str, attended_s: float) -> bool:
        """Returns whether the node is expected back, and others still come."""
        since_s = self._expected.get(node_id)
        if since_s is None or attended_s - since_s > _RETURN_TIMEOUTS * self.timeout_s:
            return False
        return attended_s - self._back_s < self.timeout_s

    def attended_s(self, now_s: float) -> float:
        """Returns the clock that stands still while the supervisor is away: time itself less its own lag."""
        self._now_s = max(self._now_s, now_s)
        late_s = self._now_s - self._due_s
        if late_s > self.interval_s:
            self.lag_s += late_s
            self._due_s = self._now_s + self.interval_s
        return self._now_s - self.lag_s
