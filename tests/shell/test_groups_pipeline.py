"""A pipeline (1F1B, two stages, two copies of each) whose stages agree by messages: not one bit changes with a lost node or rank.

The stages tell each other the shapes of what they pass on, in the first step and whenever they change between training and
evaluation. A joiner has missed it; a survivor of a step that is discarded, right after an evaluation, has been through with it.
"""

import pytest
from launching import Launcher
from training import EVAL_EVERY, finished, start

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((7, 15, 25), id="in-between"),
        pytest.param((7, EVAL_EVERY, 2 * EVAL_EVERY), id="after", marks=pytest.mark.long),
    ],
)
def test_a_pipeline_loses_a_rank_a_node_and_that_joiner_again(launcher: Launcher, steps: tuple[int, int, int]) -> None:
    """Between two evaluations, and in the steps right after one."""
    unbroken = finished(start(launcher, "pp"))
    kinds = ("kill-rank:1", "kill-node:1", "kill-rank:1")
    kills = [word for kind, step in zip(kinds, steps, strict=True) for word in ("--inject", f"{kind}@{step}")]
    broken = finished(start(launcher, "pp", *kills))
    assert len(broken.summary["recoveries"]) == 3
    broken.assert_same_as(unbroken)
