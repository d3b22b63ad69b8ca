"""One simulated training: failures drawn from a seeded generator, the wall clock split by what it went into. Pure.

    TRAIN --failure--> RECOVER --> TRAIN       a failure while recovering begins the recovery again
      |                   ^
      |                   +-- first: wait for a repaired node, when more are missing than there were spares
      +--every checkpoint_every steps--> a persistent checkpoint; those with states in memory write it beside the training

A failure costs work that is done again: all since the last checkpoint, or with states in memory the step under way. Memory does
not help where a node and the holder of its replica are lost together, in one rack or before the first recovery is over: then such
a strategy goes back to the last persistent checkpoint as well.
"""

from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from math import floor, inf
from random import Random

from deadpool.cli.simulate.cluster import (
    DAY_S,
    KEEPS_STATES_IN_MEMORY,
    NEEDS_EVERY_NODE,
    RecoveryTimes,
    SimulatedCluster,
    Strategy,
)

_TOO_LONG = 50.0  # times the ideal time: it goes back again and again, and will not end


@dataclass(slots=True, kw_only=True)
class SimulatedTimes:
    """Seconds of the wall clock by what they went into; they sum to it.

    `again`: steps done again. `slowed`: what excluded nodes have not computed. `waiting`: for a node, with no spare left.
    """

    productive: float = 0.0
    again: float = 0.0
    slowed: float = 0.0
    recovering: float = 0.0
    waiting: float = 0.0
    checkpointing: float = 0.0

    @property
    def wall_s(self) -> float:
        return float(sum(getattr(self, each.name) for each in fields(self)))


@dataclass(slots=True, kw_only=True)
class SimulatedRun:
    """What one training came to.

    `node_repair_s`: seconds in repair, until an excluded node is taken in again, summed over nodes.
    `memory_lost`: how often states in memory did not help. `finished`:
    False where the training was given up, since failures came faster than it got on.
    """

    spent: SimulatedTimes = field(default_factory=SimulatedTimes)
    failures: int = 0
    steps_again: float = 0.0
    memory_lost: int = 0
    node_repair_s: float = 0.0
    most_in_repair: int = 0
    finished: bool = True


def simulate_training(cluster: SimulatedCluster, strategy: Strategy, times: RecoveryTimes, random: Random) -> SimulatedRun:
    training = _TrainingOnItsWay(cluster, strategy, times, random)
    training.run()
    return training.result


class _TrainingOnItsWay:
    """`done`: steps whose result is held; `kept`: those of the last persistent checkpoint; `furthest`: the most ever done.

    `repairs`: when each node that is missing comes back, as a heap of seconds.
    """

    def __init__(self, cluster: SimulatedCluster, strategy: Strategy, times: RecoveryTimes, random: Random) -> None:
        self._cluster, self._strategy, self._times, self._random = cluster, strategy, times, random
        self._in_memory = strategy in KEEPS_STATES_IN_MEMORY
        self._may_be_missing = cluster.spares if strategy in NEEDS_EVERY_NODE else cluster.replicas - 1
        self.result = SimulatedRun()
        self._now_s = 0.0
        self._done = self._kept = self._furthest = 0.0
        self._repairs: list[float] = []

    def run(self) -> None:
        cluster, end = self._cluster, float(self._cluster.steps)
        while self._done < end:
            if self._is_hopeless():
                self.result.finished = False
                return
            target = min(end, self._kept + cluster.checkpoint_every) if cluster.checkpoint_every else end
            if not self._train(target):
                self._recover()
            elif target < end:
                self._write(target)

    def _is_hopeless(self) -> bool:
        return self._now_s > _TOO_LONG * self._cluster.ideal_s

    def _train(self, target: float) -> bool:
        """Trains up to step `target`; returns False when a failure has come first."""
        while self._done < target:
            speed = self._speed()
            needed_s = (target - self._done) * self._cluster.step_s / speed
            back_s = max(0.0, self._repairs[0] - self._now_s) if speed < 1 else inf
            fails_s = self._next_failure()
            span_s = min(needed_s, back_s, fails_s)
            self._work(target - self._done if span_s == needed_s else span_s * speed / self._cluster.step_s, span_s)
            if span_s == fails_s:
                return False
            if span_s == back_s:
                self._join_again()
        return True

    def _speed(self) -> float:
        """Returns the share of the data-parallel replicas that compute."""
        if self._strategy in NEEDS_EVERY_NODE:
            return 1.0
        return 1 - len(self._repairs) / self._cluster.replicas

    def _work(self, steps: float, span_s: float) -> None:
        spent, step_s = self.result.spent, self._cluster.step_s
        self._done += steps
        new = max(0.0, self._done - self._furthest)
        self._furthest = max(self._furthest, self._done)
        spent.productive += new * step_s
        spent.again += (steps - new) * step_s
        spent.slowed += span_s - steps * step_s
        self.result.steps_again += steps - new
        self._pass(span_s)

    def _write(self, target: float) -> None:
        """The step reached becomes a persistent checkpoint, unless a failure comes while it is being written."""
        if not self._in_memory:
            fails_s = self._next_failure()
            span_s = min(self._cluster.checkpoint_s, fails_s)
            self.result.spent.checkpointing += span_s
            self._pass(span_s)
            if span_s == fails_s:
                self._recover()
                return
        self._kept = target

    # ------------------------------------------------------------ failures

    def _next_failure(self) -> float:
        """Returns in how many seconds. A draw that is not used may be thrown away: failures have no memory."""
        rate = self._cluster.failures_per_s
        return self._random.expovariate(rate) if rate else inf

    def _recover(self) -> None:
        """A failure has come: the training goes back, and is brought up again, whatever else fails meanwhile."""
        lost = self._fail()
        held = self._in_memory and lost <= self._cluster.replica_distance
        transient = lost == 0
        while not self._brought_up(transient=transient) and not self._is_hopeless():
            more = self._fail()
            transient = transient and more == 0
            held = held and not self._random.random() < self._holder_among(more)
        self.result.memory_lost += self._in_memory and not held
        self._done = float(floor(self._done)) if held else self._kept

    def _fail(self) -> int:
        """Something fails; returns how many nodes are lost: 0 where a process died and its node is whole."""
        cluster, random = self._cluster, self._random
        self.result.failures += 1
        if random.random() * cluster.failures_per_s < cluster.racks * cluster.failures_per_rack_day / DAY_S:
            lost = min(cluster.rack_nodes, cluster.nodes)
        else:
            lost = 0 if random.random() < cluster.transient_share else 1
        for _ in range(lost):
            heappush(self._repairs, self._now_s + random.expovariate(1 / cluster.repair_s))
        self.result.most_in_repair = max(self.result.most_in_repair, len(self._repairs))
        return lost

    def _holder_among(self, lost: int) -> float:
        """Returns how probably nodes lost before a recovery was over hold the replica of the one lost first, or it theirs."""
        return min(1.0, 2 * lost / max(1, self._cluster.nodes - 1))

    def _brought_up(self, *, transient: bool = False) -> bool:
        """Waits for nodes while too many are missing, then for the recovery; returns False when a failure has come meanwhile."""
        while len(self._repairs) > self._may_be_missing:  # the job stands still, and nothing fails
            span_s = self._repairs[0] - self._now_s
            self.result.spent.waiting += span_s
            self._pass(span_s)
            self._take_in()
        fails_s = self._next_failure()
        span_s = min(self._times.of(self._strategy, transient=transient), fails_s)
        self.result.spent.recovering += span_s
        self._pass(span_s)
        return span_s < fails_s

    def _join_again(self) -> None:
        """A repaired node takes part again, for which the others stop; so do all that have been repaired by then."""
        while not self._brought_up() and not self._is_hopeless():
            self._fail()
        self._take_in()

    def _pass(self, span_s: float) -> None:
        """Time goes by; nodes whose repair is over come back, as spares. Excluded ones are missing until they are taken in."""
        end_s = self._now_s + span_s
        while self._repairs and self._repairs[0] <= end_s and self._strategy in NEEDS_EVERY_NODE:
            self.result.node_repair_s += len(self._repairs) * (self._repairs[0] - self._now_s)
            self._now_s = heappop(self._repairs)
        self.result.node_repair_s += len(self._repairs) * (end_s - self._now_s)
        self._now_s = end_s

    def _take_in(self) -> None:
        while self._repairs and self._repairs[0] <= self._now_s:
            heappop(self._repairs)
