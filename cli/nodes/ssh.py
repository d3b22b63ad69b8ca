"""Running a command on another machine: ssh as the user has set it up, which must not ask anything."""

import shlex
import subprocess
from collections.abc import Sequence

from deadpool.host.errors import UnavailableError

_CONNECT_S = 10
SSH_FAILED = 255  # ssh's own exit code, not the command's


def ssh_command(host: str, command: Sequence[str]) -> list[str]:
    """Returns what runs the command on that host, without a terminal, a question or a stranger's key."""
    return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-T", host, shlex.join(command)]


def output_of(host: str, command: Sequence[str], *, given: str = "", timeout_s: float) -> str:
    """Returns what the command prints there. `given`: its stdin. UnavailableError, in one line, when it fails or cannot run."""
    try:
        done = subprocess.run(
            ssh_command(host, command), input=given, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise UnavailableError(f"{host}: the program `ssh` is not here") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{host}: no answer in {timeout_s:g} s") from error
    if done.returncode != 0:
        raise UnavailableError(f"{host}: {failure(done.returncode, done.stderr)}")
    return done.stdout


def failure(exit_code: int, stderr: str) -> str:
    """Returns in one line why a command over ssh has failed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit code {exit_code}"
    return f"cannot be reached by ssh: {said}" if exit_code == SSH_FAILED else said
