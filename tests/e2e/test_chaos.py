"""The chaos run in small form: failures at random moments, some while others are being recovered from; the same end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize("seed", ["3", "4"])
def test_a_random_mixture_of_failures_ends_as_the_unbroken_run(seed: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.chaos",
        "--seed",
        seed,
        "--faults",
        "3",
        "--every-steps",
        "8",
        "--json",
        str(figures),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(figures.read_text())["strikes"]
