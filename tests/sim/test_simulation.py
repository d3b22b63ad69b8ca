"""Thousands of seeded runs of the real cores. A failure names its seed: `Run(seed).check()` shows it again."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from sim.schedule import run_seeds

_BATCHES = 20
_SEEDS = 100  # each batch; together what `make test` runs
_LONG_SEEDS = int(os.environ.get("DEADPOOL_SIM_SEEDS", "10000"))


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_no_schedule_of_failures_breaks_the_rules(batch: int) -> None:
    run_seeds(batch * _SEEDS, _SEEDS)


@pytest.mark.sim_long
@pytest.mark.skipif("'sim_long' not in config.option.markexpr", reason="runs when named: -m sim_long")
@pytest.mark.timeout(0)
def test_many_more() -> None:
    """On all CPUs: pieces of a batch each, so that none of them is left with the last ones alone."""
    first = range(_BATCHES * _SEEDS, _BATCHES * _SEEDS + _LONG_SEEDS, _SEEDS)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(run_seeds, first, [_SEEDS] * len(first)):
            pass
