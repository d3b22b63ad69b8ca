"""Which nodes have been silent too long? Pure: heartbeats and checks with their time in, silent nodes out.

Silence proves nothing while the supervisor itself was away (busy, suspended): its clock here stands still for as long as a check
comes late, so that a node is lost only after `timeout_s` in which the supervisor was really listening.

The timeout adapts to what is seen: a node that was quiet for g seconds within the last minute and came back by itself (a loaded
machine) is given up only after 1.5 g, at most three timeouts. On a quiet machine g is the time between two heartbeats, and the
timeout is what was asked for; so it may be set down to a second or less, with three heartbeats in it.
"""

import math
from collections import deque
from dataclasses import dataclass, field

_CHECKS_PER_TIMEOUT = 12  # a check that comes later than that was late by the supervisor's own fault
_AFTER_S = 0.001  # the moment in which a node's time is over is looked at just after it
_MARGIN = 1.5  # on top of the longest pause that was seen to end by itself
_TIMEOUTS_MAX = 3.0  # a node whose pauses grow and grow is lost in the end
_MEMORY_S = 60.0


@dataclass(slots=True)
class _Pauses:
    """One node's. `longest`: (when it ended, pause), falling: the first is the longest of the last minute."""

    heard_s: float
    longest: deque[tuple[float, float]] = field(default_factory=deque)

    def heard(self, now_s: float) -> None:
        pause_s, self.heard_s = now_s - self.heard_s, now_s
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
        self._due_s = now_s + self.interval_s
        self._over_s = math.inf  # when the next node's time is over, if that is before the next check
        self._now_s = now_s

    def heard(self, node_id: str, *, now_s: float) -> None:
        """Any message of the node counts, not only heartbeats."""
        attended_s = self.attended_s(now_s)
        if node_id in self._nodes:
            self._nodes[node_id].heard(attended_s)
        else:
            self._nodes[node_id] = _Pauses(attended_s)

    def expect(self, node_id: str, *, now_s: float, within_s: float) -> None:
        """A node that is known to a new supervisor has this long to come back before its silence counts."""
        self._nodes[node_id] = _Pauses(self.attended_s(now_s) + within_s)

    def forget(self, node_id: str) -> None:
        """The node is gone, or known to be stopping."""
        self._nodes.pop(node_id, None)

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
        silent = [(node_id, age_s) for left_s, node_id, age_s in left if left_s < 0]
        for node_id, _ in silent:
            del self._nodes[node_id]
        soon_s = min((left_s for left_s, *_ in left if left_s >= 0), default=math.inf)
        self._over_s = now_s + soon_s + _AFTER_S if soon_s < self.interval_s else math.inf
        return silent

    def attended_s(self, now_s: float) -> float:
        """Returns the clock that stands still while the supervisor is away: time itself less its own lag."""
        self._now_s = max(self._now_s, now_s)
        late_s = self._now_s - self._due_s
        if late_s > self.interval_s:
            self.lag_s += late_s
            self._due_s = self._now_s + self.interval_s
        return self._now_s - self.lag_s
