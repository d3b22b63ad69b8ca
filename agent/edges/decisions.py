"""Which MPI pairs run: one for each edge from this node to a node that holds replicas of its ranks. Pure.

A pair is started once an edge has been wanted for a moment (a recovery has better use for the CPUs), and again when it has ended,
after 1, 2, 4 ... 60 s if none has met since. What comes of it is said to the job: an edge is open, or lost, and why no new pair
meets, once.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from deadpool.proto.messages import EdgeChanged

SETTLE_S = 1.0
_PAUSE_S_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPair:
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPair:
    """`reason`: "" for an edge that is wanted no more."""

    holder: str
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Edge:
    """`due_s`: when a pair is to be started, or has to have met; None while it is open, or its end is awaited.

    `explained`: since one has met, it was said why another one has not.
    """

    holder: str
    due_s: float | None
    started: bool = False
    open: bool = False
    explained: bool = False
    failures: int = 0


Decision = StartPair | EndPair | EdgeChanged


class Edges:
    """Of one node. `meet_timeout_s`: for the two processes of a pair to find each other."""

    def __init__(self, meet_timeout_s: float) -> None:
        self._meet_timeout_s = meet_timeout_s
        self._edges: dict[str, _Edge] = {}
        self._generation = 0

    def wanted(self, holders: Collection[str], generation: int, *, now_s: float) -> list[Decision]:
        """The node's ranks have their replicas there from this generation on. An edge that stays keeps its pair."""
        self._generation = generation
        gone = [holder for holder in self._edges if holder not in holders]
        ended = [EndPair(holder=holder) for holder in gone if self._edges.pop(holder).started]
        for holder in holders:
            self._edges.setdefault(holder, _Edge(holder=holder, due_s=now_s + SETTLE_S))
        return [*ended]

    def met(self, holder: str, pids: tuple[int, ...]) -> list[Decision]:
        edge = self._edges.get(holder)
        if edge is None:
            return []
        edge.due_s, edge.failures, edge.open, edge.explained = None, 0, True, False
        return [EdgeChanged(generation=self._generation, holder=holder, pids=pids)]

    def ended(self, holder: str, reason: str, *, now_s: float) -> list[Decision]:
        """The pair is no more. `reason`: as much as is known."""
        edge = self._edges.get(holder)
        if edge is None or not edge.started:
            return []
        pause_s = min(SETTLE_S * 2.0**edge.failures, _PAUSE_S_MAX)
        edge.started, edge.due_s, edge.failures = False, now_s + pause_s, edge.failures + 1
        if not edge.open:
            if edge.explained:
                return []
            edge.explained = True
        edge.open = False
        return [EdgeChanged(generation=self._generation, holder=holder, lost=reason or "it ended")]

    def next_deadline_s(self) -> float | None:
        return min((edge.due_s for edge in self._edges.values() if edge.due_s is not None), default=None)

    def tick(self, *, now_s: float) -> list[Decision]:
        """A deadline has come."""
        return list(self._due(now_s))

    def _due(self, now_s: float) -> Iterator[Decision]:
        for edge in self._edges.values():
            if edge.due_s is None or edge.due_s > now_s:
                continue
            if edge.started:
                edge.due_s = None  # its end comes, and says why
                yield EndPair(holder=edge.holder, reason=f"its processes have not met within {self._meet_timeout_s:g} s")
            else:
                edge.started, edge.due_s = True, now_s + self._meet_timeout_s
                yield StartPair(holder=edge.holder)
