"""join(skip_init=True): a process that takes over a rank computes no first values, and the training is the same."""

import json
from pathlib import Path

import pytest
from launching import DRILL, Launcher

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "skipping_init.py")


def test_what_is_drawn_after_the_model_and_lasts_is_the_same_by_every_way(launcher: Launcher) -> None:
    drilled = launcher.start("--json", "--nproc-per-node", "2", SCRIPT, program=DRILL).wait()
    assert drilled.exit_code == 0, drilled.out + drilled.err
    assert {way["outcome"] for way in json.loads(drilled.out)["ways"]} == {"same"}


def test_a_copy_of_the_untrained_model_is_refused_when_the_job_starts(launcher: Launcher) -> None:
    refused = launcher.run("--standalone", SCRIPT, "copy")
    assert refused.exit_code == 2, refused.out + refused.err
    assert "a tensor of shape (1024, 1024) was made from them and is not in protect()" in refused.err
