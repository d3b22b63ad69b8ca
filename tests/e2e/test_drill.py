"""deadpool drill on real jobs: the example recovers by every way; a script whose step depends on more is told on what."""

import json
from pathlib import Path

import pytest
from launching import DRILL, Launcher
from training import ROOT, SMALL

pytestmark = pytest.mark.e2e

DRILLED = str(Path(__file__).parents[1] / "support" / "drilled.py")
ITERATED = str(Path(__file__).parents[1] / "support" / "iterated.py")
WAYS = ["in-place", "process", "spare", "checkpoint"]


@pytest.mark.long
def test_a_pipeline_goes_back_over_a_step_with_an_evaluation(launcher: Launcher) -> None:
    """Its survivors were preparing their stages when the step was discarded, with messages that nobody had sent."""
    sizes = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2")
    script = (str(ROOT / "examples" / "train_gpt.py"), "--steps", "9", "--parallel", "pp", "--eval-every", "6", *sizes)
    drilled = launcher.start("--json", "--nproc-per-node", "2", "--drill-at", "6", *script, program=DRILL).wait(150)
    assert drilled.exit_code == 0, drilled.out + drilled.err
    assert {way["outcome"] for way in json.loads(drilled.out)["ways"]} == {"same"}


def test_the_example_is_the_same_by_every_way(launcher: Launcher) -> None:
    drilled = launcher.start("--json", str(ROOT / "examples" / "train_gpt.py"), *SMALL, program=DRILL).wait()
    assert drilled.exit_code == 0, drilled.out + drilled.err
    report = json.loads(drilled.out)
    assert [(way["way"], way["outcome"]) for way in report["ways"]] == [(way, "same") for way in WAYS]
    assert (report["safe_to_keep_hot"], report["shared_when_hot"]) == (True, [])


def test_the_cause_of_a_difference_is_named(launcher: Launcher) -> None:
    drilled = launcher.start(DRILLED, "generator", "iterator", "attribute", "file", program=DRILL).wait()
    assert drilled.exit_code == 1, drilled.out + drilled.err
    assert "likely random generator source, which is not in the state: pass it in extra=" in drilled.out
    assert "likely iterator numbers, which is not in the state: have the batches from guard.steps(loader, ...)" in drilled.out
    assert "likely attribute calls of module model, which is not in the state: register it as a buffer" in drilled.out
    assert "Not safe to keep hot" in drilled.out
    assert "/metrics-1.csv" in drilled.out


@pytest.mark.long
def test_the_iterator_form_is_the_same_by_every_way(launcher: Launcher, tmp_path: Path) -> None:
    """The place of its loader is in what is compared, and so are the batches."""
    logs = "--loss-log", str(tmp_path / "losses"), "--digest", str(tmp_path / "digests")
    drilled = launcher.start("--json", ITERATED, "workers", "--steps", "9", *logs, program=DRILL).wait()
    assert drilled.exit_code == 0, drilled.out + drilled.err
    assert [(way["way"], way["outcome"]) for way in json.loads(drilled.out)["ways"]] == [(way, "same") for way in WAYS]


@pytest.mark.long
def test_what_no_step_has_used_yet_and_did_not_come_back_is_named(launcher: Launcher) -> None:
    """The early end of a training hangs on it, ten steps later."""
    drilled = launcher.start(DRILLED, "patience", program=DRILL).wait()
    assert drilled.exit_code == 0, drilled.out + drilled.err
    assert "not as it was, rank 1: variable patience" in drilled.out  # a survivor's loop body does not run again
    assert "what is named above is not in the state" in drilled.out


@pytest.mark.long
def test_a_counter_of_the_optimizer_is_named(launcher: Launcher) -> None:
    drilled = launcher.start(DRILLED, "optimizer", program=DRILL).wait()
    assert drilled.exit_code == 1, drilled.out + drilled.err
    assert "likely attribute steps of optimizer, which is not in the state" in drilled.out


def test_a_boundary_that_is_never_reached_is_an_error(launcher: Launcher) -> None:
    drilled = launcher.start("--steps", "9", DRILLED, program=DRILL).wait()
    assert drilled.exit_code == 2, drilled.out + drilled.err
    assert "the training ended before step 9" in drilled.err
