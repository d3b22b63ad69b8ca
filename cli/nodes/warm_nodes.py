"""Starting several nodes' agents on one machine from one process that has imported torch, instead of importing it for each.

The launcher's warm process (trainer_hooks/warm/process.py) imports what the script needs, forks each agent with a copy of
itself, and is ended. Where there is none, because it died or there is but one node to start, agents make their own.
"""

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

from deadpool.agent.processes.environment import loading_environment
from deadpool.agent.processes.warm import preparation, spawn_warm, take_inherited
from deadpool.host.errors import ProtocolError
from deadpool.proto import warm_wire
from deadpool.proto.config import JobConfig
from deadpool.proto.warm_wire import Fork, Forked, ForkKind, Ready


class WarmNodes:
    """`fd`: readable when `started()` may have something to tell."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._control = control
        self._asked: list[str] = []

    @property
    def fd(self) -> int:
        return self._control.fileno()

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    def start(self, node_id: str, command: Sequence[str], network_fd: int | None) -> None:
        """Asks for the node's agent; `started` says when it is there."""
        order = Fork(request=len(self._asked), kind=ForkKind.PROGRAM, environment=dict(os.environ), arguments=tuple(command))
        self._asked.append(node_id)
        fds = (1, 2)  # stdout, stderr
        with contextlib.suppress(ConnectionError):  # heard of in started()
            warm_wire.send(self._control, order, fds if network_fd is None else (*fds, network_fd))

    def started(self) -> tuple[dict[str, int], list[str]]:
        """Returns (node -> pid of the agents that are there now, the nodes whose agents will never come)."""
        pids: dict[str, int] = {}
        while self._asked and select.select([self._control], [], [], 0)[0]:
            try:
                received = warm_wire.receive(self._control)
            except (ConnectionError, ProtocolError):
                received = None
            match received:
                case (Forked(pid=pid), _):
                    pids[self._asked.pop(0)] = pid
                case (Ready(problem=""), _):
                    pass
                case _:  # it died, or cannot run the script: the agents will find out what it is, and say it
                    failed, self._asked = self._asked, []
                    return pids, failed
        return pids, []

    def close(self) -> None:
        """Ends the warm process, in whatever it is doing; the agents that are there have copies."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._control.close()


def open_warm_nodes(config: JobConfig, nodes: int) -> WarmNodes | None:
    """Returns the launcher's warm process, None where agents had better make their own."""
    inherited = take_inherited()
    if config.python != sys.executable or (inherited is None and nodes < 2):
        if inherited is not None:
            inherited[1].close()
        return None
    environment = {**os.environ, **loading_environment(config, os.environ)}
    pid, control = inherited or spawn_warm(config.python, environment)
    warm_wire.send(control, preparation(config, environment))
    return WarmNodes(pid, control)
