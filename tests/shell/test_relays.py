"""Agents behind relays, on real connections: nobody is lost with a relay, and nothing is."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

_TIMEOUT_S = 150.0
NEEDS_CRYPTOGRAPHY = pytest.mark.skipif(find_spec("cryptography") is None, reason="--tls needs the extra tls")
_RELAYED = Path(__file__).parents[1] / "support" / "relayed.py"


@pytest.mark.parametrize(
    "scenario",
    [
        ("a_failure_is_recovered_from_through_a_relay",),
        pytest.param(("a_relay_that_is_lost_loses_nobody_else", "tls"), marks=NEEDS_CRYPTOGRAPHY),
        ("a_supervisor_that_is_lost_is_followed_by_the_next_one",),
        pytest.param(("nobody_comes_in_without_the_token",), marks=NEEDS_CRYPTOGRAPHY),
        pytest.param(("nobody_comes_in_without_the_token", "tls"), marks=NEEDS_CRYPTOGRAPHY),
    ],
    ids=" ".join,
)
def test_agents_behind_a_relay(tmp_path: Path, scenario: tuple[str, ...]) -> None:
    name, *tls = scenario
    played = subprocess.run(
        [sys.executable, str(_RELAYED), name, str(tmp_path), *tls],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert played.returncode == 0, f"{played.stdout}\n{played.stderr}"
