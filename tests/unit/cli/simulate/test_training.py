"""Simulated trainings against closed forms: Daly's for checkpoints and restarts, Erlang's loss formula for spares."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadpool.cli.simulate.cluster import DAY_S, RecoveryTimes, SimulatedCluster, Strategy
from deadpool.cli.simulate.estimate import StrategyEstimate, estimate, mean_and_half
from deadpool.cli.simulate.training import simulate_training

TIMES = RecoveryTimes(restart_s=150.0, memory_restart_s=90.0, exclude_s=15.0, swap_s=35.0, transient_s=5.0)
CLUSTER = SimulatedCluster(
    nodes=1000,
    gpus_per_node=8,
    spares=10_000,
    steps=20_000,
    step_s=1.0,
    failures_per_node_day=0.05,
    transient_share=0.0,
    rack_nodes=0,
    failures_per_rack_day=0.0,
    repair_s=6 * 3600.0,
    checkpoint_every=500,
    checkpoint_s=20.0,
    replica_distance=1,
    nodes_per_replica=1,
)


def within(found: float, half: float, expected: float) -> bool:
    return abs(found - expected) < 2 * half + 1e-9  # intervals of 95 %, doubled: the seed is fixed, so no run is different


def test_checkpoints_and_restarts_take_what_daly_says() -> None:
    rate, runs = CLUSTER.failures_per_s, 100
    found = estimate(CLUSTER, Strategy.CHECKPOINT_RESTART, TIMES, runs=runs, seed=1)

    def segment_s(work_s: float) -> float:
        return math.exp(rate * TIMES.restart_s) * (math.exp(rate * work_s) - 1) / rate

    segments = CLUSTER.steps // CLUSTER.checkpoint_every
    expected = (segments - 1) * segment_s(500 + 20) + segment_s(500)  # the end needs no checkpoint
    assert within(found.wall_s.mean, found.wall_s.half, expected), (found.wall_s, expected)


def test_the_best_interval_is_youngs() -> None:
    best = math.sqrt(2 * CLUSTER.checkpoint_s / CLUSTER.failures_per_s)  # 263 s, of steps of one second

    def goodput(every: float) -> float:
        cluster = replace(CLUSTER, checkpoint_every=round(every), steps=100_000)
        return estimate(cluster, Strategy.CHECKPOINT_RESTART, TIMES, runs=20, seed=2).goodput.mean

    assert goodput(best) > max(goodput(best / 4), goodput(best * 4))


@pytest.mark.parametrize("spares", [0, 2, 5])
def test_waiting_is_erlangs_loss(spares: int) -> None:
    """The job stands still while more nodes are missing than there were spares: a loss system with a server more than spares."""
    cluster = replace(CLUSTER, nodes=100, failures_per_node_day=0.12, spares=spares, steps=20_000_000, checkpoint_every=0)
    times = replace(TIMES, swap_s=1e-3)
    load = cluster.failures_per_s * cluster.repair_s
    shares = [load**n / math.factorial(n) for n in range(spares + 2)]
    found = estimate(cluster, Strategy.HOT_SWAP, times, runs=10, seed=3)
    assert found.spent["waiting"] == pytest.approx(shares[-1] / sum(shares), rel=0.1)


def test_nodes_in_repair_are_those_of_an_infinite_queue() -> None:
    found = estimate(replace(CLUSTER, steps=200_000), Strategy.HOT_SWAP, TIMES, runs=100, seed=4)
    offered = CLUSTER.failures_per_s * CLUSTER.repair_s * (1 - found.spent["recovering"])
    repairs = found.wall_s.mean / CLUSTER.repair_s  # it begins with nothing in repair, which takes that long to be forgotten
    assert within(found.in_repair.mean, found.in_repair.half, offered * (1 - (1 - math.exp(-repairs)) / repairs))


def test_a_swap_costs_its_time_and_half_a_step() -> None:
    rare = replace(CLUSTER, failures_per_node_day=0.001, steps=500_000)
    found = estimate(rare, Strategy.HOT_SWAP, TIMES, runs=40, seed=5)
    assert within(found.lost_s.mean, found.lost_s.half + 0.5, TIMES.swap_s + 0.5 * rare.step_s)
    assert found.memory_lost.mean == 0


def test_a_transient_failure_needs_no_spare() -> None:
    found = estimate(replace(CLUSTER, transient_share=1.0, spares=0), Strategy.HOT_SWAP, TIMES, runs=10, seed=6)
    assert found.most_in_repair.mean == 0
    assert found.spent["waiting"] == 0
    assert found.failures.mean > 0


def racks(distance: int) -> StrategyEstimate:
    cluster = replace(
        CLUSTER, rack_nodes=16, failures_per_rack_day=0.1, failures_per_node_day=0.0, replica_distance=distance, steps=50_000
    )
    return estimate(cluster, Strategy.HOT_SWAP, TIMES, runs=10, seed=7)


def test_a_replica_in_another_rack_outlives_a_rack() -> None:
    near, far = racks(1), racks(16)
    assert near.memory_lost.mean == near.failures.mean > 0
    assert far.memory_lost.mean < 0.05 * far.failures.mean  # what is left are second failures during a recovery
    assert near.steps_again.mean > 50 * far.steps_again.mean


def test_excluded_nodes_slow_the_others() -> None:
    cluster = replace(CLUSTER, nodes=10, spares=0, failures_per_node_day=1.0)
    found = estimate(cluster, Strategy.EXCLUDE, TIMES, runs=100, seed=8)
    assert found.spent["slowed"] == pytest.approx(found.in_repair.mean / 10, rel=0.1)
    assert found.spent["waiting"] == 0


def test_an_excluded_node_that_is_repaired_at_once_costs_both_stops() -> None:
    """It is taken in by a stop of its own, also where it is back before the first one is over."""
    cluster = replace(CLUSTER, nodes=10, spares=0, failures_per_node_day=0.1, repair_s=1e-6, steps=200_000)
    found = estimate(cluster, Strategy.EXCLUDE, TIMES, runs=40, seed=11)
    assert within(found.lost_s.mean, found.lost_s.half + 0.5, 2 * TIMES.exclude_s + 0.5 * cluster.step_s)


def test_what_cannot_end_is_given_up() -> None:
    hopeless = replace(CLUSTER, failures_per_node_day=200.0, checkpoint_every=100, steps=200, repair_s=1.0)
    found = simulate_training(hopeless, Strategy.CHECKPOINT_RESTART, replace(TIMES, restart_s=1.0), Random(9))
    assert not found.finished


def test_nothing_fails() -> None:
    calm = replace(CLUSTER, failures_per_node_day=0.0)
    for strategy in Strategy:
        found = simulate_training(calm, strategy, TIMES, Random(10))
        writes_s = 39 * 20.0 if strategy is Strategy.CHECKPOINT_RESTART else 0.0
        assert found.spent.wall_s == pytest.approx(calm.ideal_s + writes_s)
        assert (found.failures, found.steps_again) == (0, 0)


@given(
    seed=st.integers(0, 10**6),
    strategy=st.sampled_from(Strategy),
    rate=st.floats(0, 5),
    share=st.floats(0, 1),
    spares=st.integers(0, 4),
    every=st.sampled_from((0, 7, 100)),
    rack=st.sampled_from((0, 4)),
)
def test_every_second_and_every_step_is_accounted_for(
    seed: int, strategy: Strategy, rate: float, share: float, spares: int, every: int, rack: int
) -> None:
    cluster = replace(
        CLUSTER, nodes=20, steps=200, failures_per_node_day=rate, transient_share=share, spares=spares, checkpoint_every=every,
        rack_nodes=rack, failures_per_rack_day=rate if rack else 0.0, step_s=30.0, nodes_per_replica=2,
    )  # fmt: skip
    found = simulate_training(cluster, strategy, TIMES, Random(seed))
    spent = found.spent
    assert min(spent.again, spent.recovering, spent.waiting, spent.checkpointing) >= 0
    assert spent.slowed >= -1e-6
    assert spent.again == pytest.approx(found.steps_again * cluster.step_s)
    if found.finished:
        assert spent.productive == pytest.approx(cluster.ideal_s)
    assert simulate_training(cluster, strategy, TIMES, Random(seed)) == found


def test_an_interval_is_students() -> None:
    found = mean_and_half([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    assert found.mean == 5.5
    assert found.half == pytest.approx(2.262 * 3.0277 / math.sqrt(10), rel=2e-3)  # t for 9 degrees of freedom


def test_a_million_steps_on_ten_thousand_nodes_are_a_few_thousand_draws() -> None:
    """What takes time are events, not steps: so it takes seconds."""
    large = replace(CLUSTER, nodes=10_000, steps=1_000_000, step_s=1.0, failures_per_node_day=0.005, checkpoint_every=1000)
    found = simulate_training(large, Strategy.HOT_SWAP, TIMES, Random(11))
    assert 400 < found.failures < 800
    assert large.failures_per_s * large.ideal_s == pytest.approx(50 * large.ideal_s / DAY_S)
