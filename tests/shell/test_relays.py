"""Agents behind relays, on real connections: nobody is lost with a relay, and nothing is."""

import subprocess
import sys
from pathlib import Path

import pytest

_TIMEOUT_S = 50.0
_RELAYED = Path(__file__).parents[1] / "support" / "relayed.py"


@pytest.mark.parametrize(
    "scenario",
    [
        "a_failure_is_recovered_from_through_a_relay",
        "a_relay_that_is_lost_loses_nobody_else",
        "a_supervisor_that_is_lost_is_followed_by_the_next_one",
    ],
)
def test_agents_behind_a_relay(tmp_path: Path, scenario: str) -> None:
    command = [sys.executable, str(_RELAYED), scenario, str(tmp_path)]
    played = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert played.returncode == 0, f"{played.stdout}\n{played.stderr}"
