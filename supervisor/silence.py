"""Which nodes have been silent too long? Pure: beats and checks with their time in, silent nodes out.

Silence proves nothing while the supervisor itself was away (busy, suspended): its clock here stands still for as long as a check
comes late, so that a node is lost only after `timeout_s` in which the supervisor was really listening.
"""

_CHECKS_PER_TIMEOUT = 12  # a silent node is noticed at most a twelfth of the timeout late


class Silence:
    def __init__(self, *, timeout_s: float, now_s: float) -> None:
        self.timeout_s = timeout_s
        self.interval_s = timeout_s / _CHECKS_PER_TIMEOUT
        self.lag_s = 0.0  # how long the supervisor was away, all together
        self._heard: dict[str, float] = {}  # node -> attended time of its last message
        self._due_s = now_s + self.interval_s
        self._now_s = now_s

    def heard(self, node_id: str, *, now_s: float) -> None:
        """Any message of the node counts, not only beats."""
        self._heard[node_id] = self._attended(now_s)

    def forget(self, node_id: str) -> None:
        """The node is gone, or known to be stopping."""
        self._heard.pop(node_id, None)

    def next_check_s(self) -> float:
        return self._due_s

    def check(self, *, now_s: float) -> list[tuple[str, float]]:
        """Returns (node, seconds of silence) for each that is silent too long; it is forgotten with that."""
        attended_s = self._attended(now_s)
        self._due_s = max(self._due_s, now_s + self.interval_s)
        silent = [(node, attended_s - heard_s) for node, heard_s in self._heard.items() if attended_s - heard_s > self.timeout_s]
        for node_id, _ in silent:
            del self._heard[node_id]
        return silent

    def _attended(self, now_s: float) -> float:
        """Returns the clock that stands still while the supervisor is away: time itself less its own lag."""
        self._now_s = max(self._now_s, now_s)
        late_s = self._now_s - self._due_s
        if late_s > self.interval_s:
            self.lag_s += late_s
            self._due_s = self._now_s + self.interval_s
        return self._now_s - self.lag_s
