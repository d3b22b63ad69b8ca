"""How a command of ours ends, whatever its standard streams are."""

import subprocess
import sys

import pytest

COMMAND = """
import os, sys
from deadpool.cli.exit_codes import guarded, say
def command():
    say("a line")
    with open(sys.argv[1], "w") as file:
        assert file.fileno() > 2
    say("another one")
    return 7
code = guarded(command)
assert open(sys.argv[1]).read() == ""
sys.exit(code)
"""


@pytest.mark.parametrize("streams", ["", "2>/dev/full", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_the_exit_code_is_the_commands(tmp_path_factory: pytest.TempPathFactory, streams: str) -> None:
    file = tmp_path_factory.mktemp("streams") / "file"
    done = subprocess.run(
        ["sh", "-c", f'unset PYTHONUNBUFFERED; exec "$@" {streams}', "sh", sys.executable, "-c", COMMAND, str(file)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    if not streams:
        assert done.stderr == "deadpool: a line\ndeadpool: another one\n"
