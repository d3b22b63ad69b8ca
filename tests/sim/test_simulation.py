"""Thousands of seeded runs of the real cores. A failure names its seed: `Run(seed).check()` shows it again."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from sim.schedule import run_seeds

_SEEDS = 2000  # what `make test` runs
_LONG_SEEDS = int(os.environ.get("DEADPOOL_SIM_SEEDS", "10000"))
_PIECE = 100


@pytest.mark.timeout(600)  # seconds; minutes on a machine that does ten other things
def test_no_schedule_of_failures_breaks_the_rules() -> None:
    _run(range(_SEEDS))


@pytest.mark.sim_long
@pytest.mark.skipif("'sim_long' not in config.option.markexpr", reason="runs when named: -m sim_long")
@pytest.mark.timeout(0)
def test_many_more() -> None:
    _run(range(_SEEDS, _SEEDS + _LONG_SEEDS))


def _run(seeds: range) -> None:
    """On all CPUs, in pieces, so that none of them is left with the last ones alone."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(run_seeds, seeds[::_PIECE], [_PIECE] * len(seeds[::_PIECE])):
            pass
