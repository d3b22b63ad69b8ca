"""Thousands of seeded runs of the real cores. A failure names its seed: `Run(seed).check()` shows it again."""

import os

import pytest
from sim.schedule import run_seeds

_BATCHES = 20
_SEEDS = 100  # each batch; together what `make test` runs
_LONG_SEEDS = int(os.environ.get("DEADPOOL_SIM_SEEDS", "100000"))


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_no_schedule_of_failures_breaks_the_rules(batch: int) -> None:
    run_seeds(batch * _SEEDS, _SEEDS)


@pytest.mark.sim_long
@pytest.mark.skipif("DEADPOOL_SIM_SEEDS" not in os.environ, reason="set DEADPOOL_SIM_SEEDS to the number of seeds")
@pytest.mark.timeout(0)
def test_many_more() -> None:
    run_seeds(_BATCHES * _SEEDS, _LONG_SEEDS)
