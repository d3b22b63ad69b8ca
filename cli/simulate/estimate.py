"""Many simulated trainings of one kind: means with intervals of 95 %. Pure; the same seed gives the same figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from random import Random
from statistics import fmean, stdev

from deadpool.cli.simulate.cluster import RecoveryTimes, SimulatedCluster, Strategy
from deadpool.cli.simulate.training import SimulatedRun, SimulatedTimes, simulate_training

_NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class MeanOf:
    """A mean over runs, and half the width of its 95 % interval."""

    mean: float
    half: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyEstimate:
    """What is to be expected of one strategy.

    `goodput`: the share of the wall clock in which new steps were made; `charged`: the same, with the spares' time paid as well.
    `lost_s`: seconds a failure costs, by all that it leads to. `spent`: share of the wall clock by what it went into.
    """

    strategy: Strategy
    goodput: MeanOf
    charged: MeanOf
    wall_s: MeanOf
    failures: MeanOf
    steps_again: MeanOf
    lost_s: MeanOf
    memory_lost: MeanOf
    in_repair: MeanOf
    most_in_repair: MeanOf
    spent: dict[str, float]
    unfinished: int


def estimate(cluster: SimulatedCluster, strategy: Strategy, times: RecoveryTimes, *, runs: int, seed: int) -> StrategyEstimate:
    """Returns what `runs` trainings come to. The n-th run of every strategy draws from the same seed."""
    found = [simulate_training(cluster, strategy, times, Random(f"{seed}/{index}")) for index in range(runs)]

    def mean_of(value: Callable[[SimulatedRun], float]) -> MeanOf:
        return mean_and_half([value(run) for run in found])

    def goodput(run: SimulatedRun) -> float:
        return run.spent.productive / run.spent.wall_s

    def lost_s(run: SimulatedRun) -> float:
        spent = run.spent
        return (spent.wall_s - spent.productive - spent.checkpointing) / max(1, run.failures)

    names = [each.name for each in fields(SimulatedTimes)]
    wall_s = sum(run.spent.wall_s for run in found)
    return StrategyEstimate(
        strategy=strategy,
        goodput=mean_of(goodput),
        charged=mean_of(lambda run: goodput(run) * cluster.nodes / (cluster.nodes + cluster.spares)),
        wall_s=mean_of(lambda run: run.spent.wall_s),
        failures=mean_of(lambda run: run.failures),
        steps_again=mean_of(lambda run: run.steps_again),
        lost_s=mean_of(lost_s),
        memory_lost=mean_of(lambda run: run.memory_lost),
        in_repair=mean_of(lambda run: run.node_repair_s / run.spent.wall_s),
        most_in_repair=mean_of(lambda run: run.most_in_repair),
        spent={name: sum(getattr(run.spent, name) for run in found) / wall_s for name in names},
        unfinished=sum(not run.finished for run in found),
    )


def mean_and_half(values: Sequence[float]) -> MeanOf:
    """Returns mean and half width by Student's distribution, whose quantile is taken from the normal one (Cornish and Fisher)."""
    if len(values) < 2:
        return MeanOf(fmean(values), 0.0)
    free, z = len(values) - 1, _NORMAL_95
    quantile = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return MeanOf(fmean(values), quantile * stdev(values) / len(values) ** 0.5)
