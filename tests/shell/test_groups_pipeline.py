"""A pipeline (1F1B, two stages, two copies of each) whose stages agree by messages: not one bit changes with a lost node or rank.

The stages tell each other the shapes of what they pass on, in the first step and in the first evaluation; a joiner has missed it.
"""

import pytest
from launching import Launcher
from training import finished, start

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(200)
def test_a_pipeline_loses_a_rank_a_node_and_that_joiner_again(launcher: Launcher) -> None:
    unbroken = finished(start(launcher, "pp"))
    kills = ("--inject", "kill-rank:1@7", "--inject", "kill-node:1@15", "--inject", "kill-rank:1@25")
    broken = finished(start(launcher, "pp", *kills))
    assert len(broken.summary["recoveries"]) == 3
    broken.assert_same_as(unbroken)
