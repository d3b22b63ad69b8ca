"""Starts programs that find a warm process made, so that a test of a job need not wait for torch's import on every node.

One process of the whole test session has imported torch; it forks each program, a child of the test's own process, with a
copy of itself as that program's warm process: what the launcher does for its agents (cli/nodes/warm_nodes.py), one floor higher.
"""

import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from deadpool.agent.processes.warm import spawn_warm
from deadpool.host.lifetime import become_subreaper
from deadpool.proto import warm_wire
from deadpool.proto.version import own_version
from deadpool.proto.warm_wire import Fork, ForkKind, Prepare, Ready
from deadpool.proto.warm_wire import Forked as ForkedFrame

TEST_TAG = "DEADPOOL_TEST"  # in the environment of what a test has started; this outlives the test
_POLL_S = 0.01
_source: socket.socket | None = None


class Forked:
    """A child of this process, with what tests use of subprocess.Popen."""

    def __init__(self, pid: int, command: Sequence[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._command = command

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(list(self._command), timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)


def warm_start(command: Sequence[str], environment: Mapping[str, str], folder: Path, streams: tuple[int, int]) -> Forked:
    """Runs the command in `folder` with stdout and stderr as given."""
    global _source
    if _source is None:
        become_subreaper()
        _source = _start_source()
    order = Fork(
        request=0, kind=ForkKind.PROGRAM, environment=dict(environment), arguments=tuple(command), folder=str(folder)
    )  # fmt: skip
    warm_wire.send(_source, order, streams)
    answer = warm_wire.receive(_source)
    assert answer is not None, "the warm process has died"
    assert isinstance(answer[0], ForkedFrame), answer
    return Forked(answer[0].pid, command)


def _start_source() -> socket.socket:
    environment = {name: value for name, value in os.environ.items() if name != TEST_TAG} | {"OMP_NUM_THREADS": "1"}
    _pid, control = spawn_warm(sys.executable, environment)
    warm_wire.send(control, Prepare(version=own_version(), environment=environment, folder="/"))
    answer = warm_wire.receive(control)
    assert answer is not None, "the warm process has died"
    assert isinstance(answer[0], Ready), answer
    atexit.register(control.close)
    return control
