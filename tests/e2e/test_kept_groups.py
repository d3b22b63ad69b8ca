"""Groups of which no member is lost stay open through a recovery, and not one bit changes by it."""

from pathlib import Path

import pytest
from launching import Launcher, until
from paired import GROUPS
from training import finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "paired.py")
NODES = ("--standalone", "--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", "--summary-json", "summary.json")


def test_a_node_is_lost_and_a_rank_when_a_call_is_under_way_in_a_group_of_the_others(launcher: Launcher) -> None:
    """Each rank waits for a call before it makes the next. So the break finds one of a pair's groups at most in the midst of one,

    and one more from which a rank has got its message, but not sent the answer.
    """
    reference = finished(launcher.start(*NODES, SCRIPT))
    job = launcher.start(*NODES, "--inject", "kill-node:1@5", SCRIPT, "--die", "10")
    until(lambda: "recovered" in [event["event"] for event in job.events()], 150, "the node is replaced")
    (job.folder / "may-die").touch()
    broken = finished(job)
    broken.assert_same_as(reference)
    node, rank = broken.summary["recoveries"]
    assert (node["class"], rank["class"]) == ("permanent", "transient")
    for recovery in (node, rank):
        assert recovery["groups_kept"] + recovery["groups_opened"] == 2 * GROUPS + 1
        assert GROUPS - 2 <= recovery["groups_kept"] <= GROUPS, "those of ranks 0 and 1"
    ended = [event["groups"] for event in job.events() if event["event"] == "recovered"]
    assert [each["kept"] for each in ended] == [node["groups_kept"], rank["groups_kept"]]
