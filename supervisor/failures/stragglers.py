"""Which ranks take longer than the others for the same step, and not because they wait? Pure.

A rank's own time of a step is the step's time without that in which a collective was under way. Once every rank has made
enough steps, these are compared: a rank stands out when its own time is well above the median, and above it by more than the
ranks differ among each other. That must be so three times in a row, and not be so twice in a row to be over.

A rank that stands out on one node after another has more to do than the others (the last stage of a pipeline): that is its work,
not its node, and nothing is said of it any more. CPU time only: what a GPU computes is not seen here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from deadpool.proto.messages import Heartbeat, RankProgress

FEWEST_RANKS = 3  # of two ranks nobody can tell which one is slow
WINDOW_STEPS = 5
WINDOW_S = 5.0
TIMES = 1.3  # the median, at least
SPREADS = 5.0  # above it, at least
EVERY_S = 1.0
_RANKS_PER_S = 2000  # that are compared: of so many more the windows are longer
CONFIRMED = 3  # windows in a row
CLEARED = 2
_TO_SIGMA = 1.4826  # a median deviation of what is normally distributed
_SMALLEST_SPREAD = 0.02  # of the median: ranks are never more alike than that


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceVerdict:
    """The rank on that node is a straggler from now on, or (`over`) is none any more. `own_s`: its own time of a step."""

    rank: int
    node_id: str
    own_s: float
    median_s: float
    over: bool = False


@dataclass(slots=True, kw_only=True)
class _PacedRank:
    """The process that plays a rank: its counters when the window began, and now; in how many windows in a row it stood out."""

    pid: int
    first: RankProgress
    newest: RankProgress
    stood_out: int = 0
    inconspicuous: int = 0
    straggles: bool = False

    @property
    def steps(self) -> int:
        return self.newest.steps_done - self.first.steps_done

    @property
    def own_s(self) -> float:
        """Mean over the window. Needs steps in it."""
        stepped_s, waited_s = self.newest.stepped_s - self.first.stepped_s, self.newest.waited_s - self.first.waited_s
        return max(0.0, stepped_s - waited_s) / self.steps


@dataclass(slots=True)
class StragglerWatch:
    """Hears the heartbeats; begins anew in each generation, since ranks, nodes and speeds may all be others."""

    _generation: int = 0
    _began_s: float = 0.0
    _asked_s: float = 0.0
    _ranks: dict[int, _PacedRank] = field(default_factory=dict)
    _on: dict[int, set[str]] = field(default_factory=dict)  # the nodes on which a rank has straggled

    def heard(self, heartbeat: Heartbeat, *, now_s: float) -> None:
        if heartbeat.generation != self._generation:
            if heartbeat.generation < self._generation:
                return
            self._generation, self._began_s = heartbeat.generation, now_s
            self._ranks.clear()
        for progress in heartbeat.ranks:
            if progress.waited_s < 0 or progress.steps_done == 0:
                continue
            known = self._ranks.get(progress.rank)
            if known is None or known.pid != progress.pid:
                self._ranks[progress.rank] = _PacedRank(pid=progress.pid, first=progress, newest=progress)
            else:
                known.newest = progress

    @property
    def _window_s(self) -> float:
        return max(WINDOW_S, len(self._ranks) / _RANKS_PER_S)

    def due(self, *, now_s: float) -> bool:
        """Returns whether `check` may have something to say: it is asked once in a while, not with every heartbeat."""
        return now_s >= self._asked_s + EVERY_S and now_s - self._began_s >= self._window_s

    def check(self, nodes: Mapping[int, str], *, generation: int, now_s: float) -> list[PaceVerdict]:
        """Returns what has changed. `nodes`: of every rank of the generation that runs."""
        known, self._asked_s = self._ranks, now_s
        ripe = generation == self._generation and len(nodes) >= FEWEST_RANKS and now_s - self._began_s >= self._window_s
        if not ripe or known.keys() != nodes.keys() or any(each.steps < WINDOW_STEPS for each in known.values()):
            return []
        own_s = {rank: each.own_s for rank, each in known.items()}
        middle_s = median(own_s.values())
        spread_s = max(_TO_SIGMA * median(abs(value - middle_s) for value in own_s.values()), _SMALLEST_SPREAD * middle_s)
        limit_s = max(TIMES * middle_s, middle_s + SPREADS * spread_s)
        verdicts = []
        for rank, watched in known.items():
            if self._changed(watched, stands_out=own_s[rank] > limit_s) and self._is_its_nodes(rank, nodes[rank]):
                verdicts.append(
                    PaceVerdict(
                        rank=rank, node_id=nodes[rank], own_s=own_s[rank], median_s=middle_s, over=not watched.straggles
                    )
                )  # fmt: skip
            watched.first = watched.newest
        self._began_s = now_s
        return verdicts

    def _changed(self, watched: _PacedRank, *, stands_out: bool) -> bool:
        """Counts one more window. Returns whether the rank is a straggler now and was none before, or the other way round."""
        watched.stood_out = watched.stood_out + 1 if stands_out else 0
        watched.inconspicuous = 0 if stands_out else watched.inconspicuous + 1
        before = watched.straggles
        if watched.stood_out >= CONFIRMED:
            watched.straggles = True
        elif watched.inconspicuous >= CLEARED:
            watched.straggles = False
        return watched.straggles != before

    def _is_its_nodes(self, rank: int, node_id: str) -> bool:
        """Returns whether it may be the node's fault that the rank is slow there: it has not been slow on another one, too."""
        on = self._on.setdefault(rank, set())
        on.add(node_id)
        return len(on) == 1
