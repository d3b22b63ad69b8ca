"""What only a series of heartbeats tells: rates, where all ranks were at one moment, how long their steps take. Pure.

Thousands of nodes speak each second, and seldom does anybody ask: most of what a heartbeat says is read when somebody does.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from deadpool.proto.messages import NO_STEP, Heartbeat, RankProgress

_RATE_WINDOW_S = 5.0
_POINTS = 8  # of each rank and node: so many heartbeats back
_SILENT_S = 2.5  # a node that has said nothing for so long is not waited for when a moment is chosen
_STEP_TIMES = 60
_UNREAD = 3  # heartbeats of a node, with different steps, that are kept until somebody asks
_CLOCKS_S = 0.005


class StepPoint(NamedTuple):
    """A rank began this step then; its counters were these."""

    began_s: float
    step: int
    steps_done: int
    stepped_s: float
    waited_s: float


@dataclass(slots=True)
class RankPulse:
    """The last points of the process that plays the rank; one for each step that was seen in progress."""

    pid: int
    points: deque[StepPoint] = field(default_factory=lambda: deque(maxlen=_POINTS))

    def step_at(self, moment_s: float, later: tuple[float, int] | None = None) -> int:
        """Returns the step that was in progress then, as far as heartbeats tell it. `later`: (when, step), after all points."""
        after: StepPoint | None = None
        last: StepPoint | None = None
        if later is not None and self.points and later[1] > self.points[-1].step:
            if later[0] <= moment_s:
                return later[1]
            after = self.points[-1]._replace(began_s=later[0], step=later[1])
        for point in reversed(self.points):  # the moment is a heartbeat ago: near the end
            if point.began_s <= moment_s:
                last = point
                break
            after = point
        if last is None:
            return after.step if after is not None else NO_STEP
        if after is None or after.step <= last.step:
            return last.step
        share = (moment_s - last.began_s) / (after.began_s - last.began_s)
        return last.step + int(share * (after.step - last.step))

    def step_s(self) -> tuple[float, float]:
        """Returns the mean time of the last steps, and of that with a collective under way; 0 and -1 where it is not known."""
        if not self.points:
            return 0.0, -1.0
        first, last = self.points[0], self.points[-1]
        steps = last.steps_done - first.steps_done
        stepped_s, waited_s = last.stepped_s - first.stepped_s, last.waited_s - first.waited_s
        if steps <= 0:
            steps, stepped_s, waited_s = last.steps_done, last.stepped_s, last.waited_s
        if steps <= 0:
            return 0.0, -1.0
        return stepped_s / steps, -1.0 if last.waited_s < 0 else max(0.0, waited_s) / steps


@dataclass(slots=True)
class NodePulse:
    """(when, value) of the node's counters, which begin again when a process is replaced."""

    counters: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    unread: list[tuple[Heartbeat, float, float]] = field(default_factory=list)  # and when it was heard, by both clocks
    commit: tuple[int, int] = (0, NO_STEP)  # (generation, newest commit) of which it has spoken; generations are counted from 1
    clock_ahead_s: deque[float] = field(default_factory=lambda: deque(maxlen=_POINTS))  # the largest has had the shortest way

    def heard(self, name: str, value: float, now_s: float) -> None:
        points = self.counters.get(name)
        if points is None:
            points = self.counters[name] = deque(maxlen=_POINTS)
        if points and value < points[-1][1]:
            points.clear()
        points.append((now_s, value))

    def keep(self, heartbeat: Heartbeat, now_s: float, wall_s: float) -> None:
        """Until somebody asks. Of those in the same step the first and the last one are enough."""
        unread = self.unread
        if len(unread) > 1 and heartbeat.ranks and unread[-1][0].ranks:
            then, now = unread[-1][0].ranks[0], heartbeat.ranks[0]
            if (then.step, then.steps_done) == (now.step, now.steps_done):
                unread.pop()
        unread.append((heartbeat, now_s, wall_s))
        if len(unread) > _UNREAD:
            del unread[0]

    def per_s(self, name: str) -> float:
        points = self.counters.get(name, deque())
        if len(points) < 2 or points[-1][0] <= points[0][0]:
            return 0.0
        return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


@dataclass(slots=True)
class Pulse:
    """The last heartbeat of each node, and what a series of them tells. Times are monotonic seconds, passed in.

    `of_scripts`: the last one with ranks of each node, for what their scripts have said outlives their processes.
    """

    heartbeats: dict[str, tuple[Heartbeat, float]] = field(default_factory=dict)
    of_scripts: dict[str, Heartbeat] = field(default_factory=dict)
    later: dict[str, tuple[float, int]] = field(default_factory=dict)  # node -> (when, step) that a relay has heard since then
    committed_at_s: float | None = None  # when a node last spoke of a newer commit than before
    step_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STEP_TIMES))  # of the lowest rank
    _nodes: dict[str, NodePulse] = field(default_factory=dict)
    _ranks: dict[int, RankPulse] = field(default_factory=dict)
    _stalls_s: dict[tuple[int, int], float] = field(default_factory=dict)  # (rank, pid) -> the main thread's waits
    _clocks_ahead_s: dict[str, float] = field(default_factory=dict)
    _unread: set[str] = field(default_factory=set)  # nodes
    _lowest_rank: float = math.inf  # of those that were heard of
    _steps: deque[tuple[float, int]] = field(default_factory=deque)  # (time, newest step of any rank)

    def heard(self, node_id: str, heartbeat: Heartbeat, *, now_s: float, wall_s: float = 0.0) -> None:
        """`wall_s`: what our own calendar clock says; 0 for a heartbeat of the past."""
        self.heartbeats[node_id] = (heartbeat, now_s)
        self.later.pop(node_id, None)
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = NodePulse()
        if node.unread and node.unread[-1][0].generation != heartbeat.generation:
            self._read(node_id)  # whose processes may be replaced now
        node.keep(heartbeat, now_s, wall_s)
        self._unread.add(node_id)
        if not heartbeat.ranks:
            return
        self.of_scripts[node_id] = heartbeat
        newest = heartbeat.generation, max(each.commit_step for each in heartbeat.ranks)
        if newest > node.commit:
            if newest[1] != NO_STEP and node.commit[0] in (newest[0], 0):
                self.committed_at_s = now_s
            node.commit = newest
        if min(each.rank for each in heartbeat.ranks) <= self._lowest_rank:
            self._read(node_id)
        step = max(each.step for each in heartbeat.ranks)
        if step == NO_STEP:
            return
        self._steps.append((now_s, step))
        while now_s - self._steps[0][0] > _RATE_WINDOW_S:
            self._steps.popleft()

    def _read(self, *node_ids: str) -> None:
        """Reads what these nodes have said since the last time."""
        self._unread.difference_update(node_ids)
        for node_id in node_ids:
            node = self._nodes[node_id]
            unread, node.unread = node.unread, []
            for heartbeat, heard_s, wall_s in unread:
                if wall_s and heartbeat.wall_s:
                    node.clock_ahead_s.append(heartbeat.wall_s - wall_s)
                    self._clocks_ahead_s[node_id] = max(node.clock_ahead_s)
                for name in ("tokens", "sent_bytes", "received_bytes", "replicated_bytes"):
                    node.heard(name, getattr(heartbeat, name), heard_s)
                for progress in heartbeat.ranks:
                    self._stalls_s[progress.rank, progress.pid] = progress.exposed_stall_s
                    self._progressed(progress, heard_s)

    @property
    def ranks(self) -> dict[int, RankPulse]:
        self._read(*self._unread)
        return self._ranks

    @property
    def nodes(self) -> dict[str, NodePulse]:
        self._read(*self._unread)
        return self._nodes

    @property
    def clocks_ahead_s(self) -> dict[str, float]:
        self._read(*self._unread)
        return self._clocks_ahead_s

    def _progressed(self, progress: RankProgress, now_s: float) -> None:
        if progress.step == NO_STEP:
            return
        known = self._ranks.get(progress.rank)
        if known is None or known.pid != progress.pid:
            known = self._ranks[progress.rank] = RankPulse(progress.pid)
            self._lowest_rank = min(self._lowest_rank, progress.rank)
        last = known.points[-1] if known.points else None
        if last is not None and (last.step, last.steps_done) == (progress.step, progress.steps_done):
            return
        known.points.append(
            StepPoint(
                now_s - progress.step_age_s, progress.step, progress.steps_done, progress.stepped_s, max(-1.0, progress.waited_s)
            )
        )
        if last is not None and progress.steps_done > last.steps_done and progress.rank == self._lowest_rank:
            self.step_times_s.append((progress.stepped_s - last.stepped_s) / (progress.steps_done - last.steps_done))

    def moment_s(self, *, now_s: float) -> float:
        """Returns the newest moment of which every node that is not silent has told."""
        heard = [at_s for at_s in map(self.heard_s, self.heartbeats) if now_s - at_s < _SILENT_S]
        return min(heard, default=now_s)

    def heard_s(self, node_id: str) -> float:
        """Returns when the node's last heartbeat came, to its relay or here."""
        return self.later[node_id][0] if node_id in self.later else self.heartbeats[node_id][1]

    def clocks_that_differ_s(self) -> dict[str, float]:
        """Returns by how much the calendar clocks of nodes are ahead of ours, where that is more than a heartbeat's way."""
        return {node_id: round(ahead_s, 4) for node_id, ahead_s in self.clocks_ahead_s.items() if abs(ahead_s) >= _CLOCKS_S}

    def steps_per_s(self) -> float:
        """Returns the rate over the last seconds; 0 when steps are being repeated."""
        if len(self._steps) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        return max(0.0, (last - first) / (last_s - first_s)) if last_s > first_s else 0.0

    def exposed_stall_s(self) -> float:
        """Returns the wait of the rank that has waited longest, over all processes that have played it."""
        self._read(*self._unread)
        by_rank: dict[int, float] = {}
        for (rank, _), stall_s in self._stalls_s.items():
            by_rank[rank] = by_rank.get(rank, 0.0) + stall_s
        return max(by_rank.values(), default=0.0)

    def tokens_per_s(self, node_ids: Iterable[str]) -> float:
        nodes = self.nodes
        return sum(nodes[node_id].per_s("tokens") for node_id in node_ids if node_id in nodes)

    def until(self, node_ids: Iterable[str]) -> int:
        """Returns the step with which the loop ends that these nodes' scripts are in, or were; 0 while nobody has said so."""
        return max((self.of_scripts[each].until for each in node_ids if each in self.of_scripts), default=0)

    def reported(self, node_ids: Iterable[str]) -> dict[str, float]:
        """Returns the script's numbers; of two nodes that report one name, the value of the one with the lower rank."""
        found: dict[int, dict[str, float]] = {}
        for node_id in node_ids:
            if (heartbeat := self.of_scripts.get(node_id)) is not None:
                found[min(each.rank for each in heartbeat.ranks)] = {each.name: each.value for each in heartbeat.reported}
        merged: dict[str, float] = {}
        for lowest in sorted(found, reverse=True):
            merged |= found[lowest]
        return merged
