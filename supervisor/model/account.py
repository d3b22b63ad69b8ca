"""Where the job's time has gone: every second from the first event on is of one kind, and they sum to the wall clock. Values.

What happened before it was noticed is booked later: the time from a failure to its detection was no productive one.
"""

from dataclasses import dataclass, field, fields

from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import SpentTimes

KINDS = tuple(each.name for each in fields(SpentTimes) if each.name not in ("stalled", "node_s"))


@dataclass(slots=True, kw_only=True)
class TimeAccount:
    """`began_s`, `mark_s`: from when and up to when it is booked; None before the first event. `node_s`: of all nodes, summed.

    `furthest_step`: the newest that had been begun when the job last went back. `again`: no rank has come as far since.
    """

    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    node_s: float = 0.0
    began_s: float = 0.0
    mark_s: float | None = None
    furthest_step: int = NO_STEP
    again: bool = False

    def book(self, kind: str, nodes: int, *, now_s: float) -> None:
        """The time since the last booking was of this kind, on so many nodes."""
        if self.mark_s is None:
            self.began_s = self.mark_s = now_s
        elif now_s > self.mark_s:
            self.spent_s[kind] += now_s - self.mark_s
            self.node_s += nodes * (now_s - self.mark_s)
            self.mark_s = now_s

    def gone_back(self, furthest_step: int, *, newest_step: int) -> None:
        """Steps up to the furthest are done again. `newest_step`: that some rank is in now."""
        self.furthest_step, self.again = furthest_step, newest_step < furthest_step

    def step_begun(self, step: int) -> None:
        """Some rank is in this step."""
        self.again = self.again and step < self.furthest_step

    def was_recovering(self, since_s: float) -> None:
        """The job has been standing still since then, which is only noticed now."""
        assert self.mark_s is not None
        wanted = max(0.0, self.mark_s - since_s)
        for kind in ("productive", "again"):
            moved = min(wanted, self.spent_s[kind])
            self.spent_s[kind] -= moved
            self.spent_s["recovering"] += moved
            wanted -= moved

    def so_far(self, kind: str, nodes: int, *, now_s: float, stalled_s: float) -> SpentTimes:
        """Returns the account as of now, with the waits of the steps for protection taken out of what is productive."""
        spent_s, node_s = dict(self.spent_s), self.node_s
        if self.mark_s is not None:
            spent_s[kind] += max(0.0, now_s - self.mark_s)
            node_s += nodes * max(0.0, now_s - self.mark_s)
        stalled = min(stalled_s, spent_s["productive"])
        spent_s["productive"] -= stalled
        return SpentTimes(**spent_s, stalled=stalled, node_s=node_s)
