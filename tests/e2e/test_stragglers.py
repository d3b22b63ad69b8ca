"""A rank that is slow where it is, and nowhere else: it is named, its node is drained, and the losses stay the same."""

from pathlib import Path

import pytest
from launching import Launcher
from training import finished, nodes, script, start

pytestmark = [pytest.mark.e2e, pytest.mark.long]
STRAGGLING = str(Path(__file__).parents[1] / "support" / "straggling.py")


def test_a_straggler_moves_to_a_spare(launcher: Launcher) -> None:
    reference = finished(start(launcher, "zero", steps=90))
    options = ("--standalone", "--spares", "1", "--swap-stragglers", "--summary-json", "summary.json")
    job = launcher.start(*nodes("zero"), *options, STRAGGLING, *script("zero", steps=90))
    moved = finished(job)
    moved.assert_same_as(reference)
    named = [(event["rank"], event["node"], event["swap"]) for event in job.events() if event["event"] == "straggler"]
    assert named == [(3, "node1", "its node is drained")]
    (recovery,) = moved.summary["recoveries"]
    assert (recovery["class"], recovery["ranks"], recovery["spare"]) == ("planned", [2, 3], "node2")
