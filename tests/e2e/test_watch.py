"""`deadpool status --watch` on a real terminal, with a real job."""

from pathlib import Path

import pytest
from launching import Launcher, until
from terminals import Terminal, terminal

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"
SMALL = ("--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch", "2", "--eval-every", "10")


def test_the_live_view_shows_a_job_takes_keys_and_ends_with_how_it_ended(launcher: Launcher) -> None:
    job = launcher.start("--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", str(EXAMPLE), "--steps", "100000", *SMALL)
    until((job.job_folder / "endpoint.json").exists, 60, "the supervisor listens")
    watch = ("deadpool.cli.main", "status", "--watch")
    with terminal(*watch, environment=job.environment, folder=job.folder) as view:
        until(lambda: " run " in view.frame and "of 100000" in view.frame and "loss " in view.frame, 80, "it trains")
        until(lambda: " ms" in _line(view, "node0"), 60, "each rank's own time")
        view.press("dnode7\n")
        until(lambda: "there is no live node 'node7'" in view.frame, 60, "the refusal")
        view.press("ikill-rank 2\n")
        until(lambda: "rank 2 back in place" in view.frame, 60, "a recovery, however short, is seen")
        until(lambda: "ago in " in view.frame and "recoveries  1  " in view.frame, 60, "it is counted, and how long it took")
        view.press("l0\n")
        until(lambda: "held-out" in view.frame, 60, "what rank 0 prints")
        assert max(map(len, view.frame.splitlines())) <= 80
        assert job.ask("stop").returncode == 0
        assert view.process.wait(100.0) == 0
        assert "ended: " in view.frame
        assert "exit code 143" in view.frame
        assert "steps of 100000, committed " in view.frame
        assert "lost" not in view.frame
    assert job.wait().exit_code == 143


def _line(view: Terminal, word: str) -> str:
    return next((line for line in view.frame.splitlines() if line.startswith(word)), "")
