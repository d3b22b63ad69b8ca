"""A thread that is inside torch while the interpreter goes down does not abort the process."""

import subprocess
import sys
from pathlib import Path

import pytest

ENDING = Path(__file__).parents[1] / "support" / "ending.py"


@pytest.mark.parametrize(("thread", "said"), [("waited-for", ""), ("stuck", "stuck at exit: a wait")])
def test_a_thread_inside_torch_at_the_end(thread: str, said: str) -> None:
    ended = subprocess.run([sys.executable, str(ENDING), thread], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (0, "the script's end\n", said)
