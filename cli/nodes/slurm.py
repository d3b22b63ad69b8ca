"""A job's nodes when they are those of a Slurm allocation: one srun, with a task on each that is cli/nodes/wrapper.py.

What srun says is no verdict: after the loss of a node it may return early, or wait for long. Who is alive, the supervisor knows;
its events say so. Slurm's own word (a node DOWN, or to be drained) is asked for now and then and passed on to the supervisor.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deadpool.agent.edges.launcher import check_transport
from deadpool.cli.launcher.children import Children, module_command
from deadpool.cli.nodes.live_nodes import LiveNodes
from deadpool.deploy.slurm.allocation import (
    Allocation,
    NodeState,
    check_gpus,
    job_command,
    node_states,
    nodes_command,
    step_command,
    step_name,
    steps_command,
    steps_of,
    task_epilog,
)
from deadpool.host.addresses import interface_address, outward_address, own_address
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.proto.config import JobConfig
from deadpool.proto.terms import journal_folder

_TASK_EPILOG = "task-epilog"  # in the folder that the job's machines share; add-spare.sbatch names it as well
_SRUN, _WATCH = "srun", "scontrol"
_COMMAND_S = 30.0  # Slurm's commands wait for a controller that is busy, or away
LINGER_S = 5.0


class AllocationNodes:
    """`folder`: the job's on this machine. The nodes have Slurm's names."""

    shares_folder = True
    linger_s = LINGER_S

    def __init__(
        self,
        config: JobConfig,
        folder: Path,
        children: Children,
        allocation: Allocation,
        say: Callable[[str], None],
        *,
        interface: str | None,
        poll_s: float,
    ) -> None:
        self._config, self._folder, self._children, self._say = config, folder, children, say
        self._allocation, self._interface = allocation, interface
        self._nodes = allocation.nodes[: config.nnodes + config.spares]
        self._host = ""
        self._live = LiveNodes()
        self._states = StateChanges(poll_s)
        self._told: set[str] = set()

    @property
    def host(self) -> str:
        return self._host

    def open(self) -> None:
        check_transport(self._config)
        check_gpus(self._allocation, _of_allocation(self._allocation))
        self._host = interface_address(self._interface) if self._interface else _address(self._nodes)

    def start(self, for_agents: Sequence[str]) -> None:
        here = os.environ.get("SLURMD_NODENAME", "")
        own = ["--slurm", "--shared", str(journal_folder(self._config)), "--launcher", here, *for_agents]
        if self._interface:
            own += ["--interface", self._interface]
        command = [*module_command("deadpool.cli.nodes.wrapper"), *own]
        epilog = journal_folder(self._config).absolute() / _TASK_EPILOG
        epilog.write_text(task_epilog(self._config.job_id))
        epilog.chmod(0o700)
        name = step_name(self._config.job_id)
        step = step_command(self._allocation, self._nodes, command, name=name, epilog=str(epilog))
        self._children.start(_SRUN, step)

    def fds(self) -> list[int]:
        return []

    def on_readable(self) -> None:
        pass

    def any_left(self) -> bool:
        return self._children.pid(_SRUN) is not None or bool(self._live.now)

    def on_child_ended(self, name: str, exit_code: int) -> None:
        if name == _WATCH:
            if exit_code == 0:
                self._pass_on(self._states.changes((self._folder / _WATCH).read_text()))
        elif not self._live.over:
            left = len(self._live.now)
            self._say(f"srun has ended with {exit_code}" + (f"; nodes that live on: {left}" if left else ""))

    def on_remains_gone(self) -> None:
        pass

    def on_event(self, event: dict[str, Any]) -> None:
        self._live.note(event)

    def poll(self) -> None:
        if self._states.due(time.monotonic()) and self._children.pid(_WATCH) is None:
            fd = os.open(self._folder / _WATCH, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._children.start(_WATCH, nodes_command(self._nodes), lambda: _print_to(fd))
            os.close(fd)

    def ask_to_stop(self) -> None:
        from deadpool.cli import client

        try:
            with client.connected(journal_folder(self._config)) as job:
                job.stop("the launcher was told to stop")
        except DeadpoolError as error:
            self._say(f"{error}: the nodes are told to end")
            self._children.signal(_SRUN, signal.SIGTERM)

    def prepare_end(self) -> None:
        """Nodes that were told to end have ended by now; for those that are gone, srun would wait for long."""
        self._children.signal(_SRUN, signal.SIGKILL)
        self._children.signal(_WATCH, signal.SIGKILL)

    def close(self) -> None:
        steps = steps_of(_ask(steps_command(self._allocation)), name=step_name(self._config.job_id))
        if steps:
            _ask(["scancel", "--signal=KILL", *steps])

    def _pass_on(self, changes: dict[str, NodeState]) -> None:
        """Tells the supervisor. What it refuses, because no spare is there, say, is tried again after the next answer."""
        from deadpool.cli import client

        for node, state in changes.items():
            if node not in self._live.now:
                continue
            word = f"Slurm says that {node} is {state.text}{f' ({state.reason})' if state.reason else ''}"
            try:
                with client.connected(journal_folder(self._config)) as job:
                    if state.down:
                        job.give_up(node, word)
                    else:
                        job.drain(node, word, undo=not state.drains)
                self._states.passed_on(node, state)
            except DeadpoolError as error:
                word += f"; {error}"
            if word not in self._told:
                self._told.add(word)
                self._say(word)


_WELL = NodeState(down=False, drains=False, text="")


def _what(state: NodeState) -> str:
    return "down" if state.down else "drains" if state.drains else ""


class StateChanges:
    """What Slurm has said of the nodes, and when it is to be asked again. Only changes count. Pure."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._next_s = 0.0
        self._known: dict[str, NodeState] = {}

    def due(self, now_s: float) -> bool:
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._poll_s
        return True

    def changes(self, text: str) -> dict[str, NodeState]:
        """Returns the nodes that are down or to be left, or no longer, and of which that has not been passed on."""
        now = node_states(text)
        return {node: state for node, state in now.items() if _what(state) != _what(self._known.get(node, _WELL))}

    def passed_on(self, node: str, state: NodeState) -> None:
        self._known[node] = state


def put_back(allocation: Allocation, say: Callable[[str], None]) -> None:
    """Puts the job back into Slurm's queue: the rest is done in its next run. Slurm ends this one for it."""
    say(f"Slurm job {allocation.job_id} is requeued: it resumes when it runs again")
    sys.stdout.flush()
    done = subprocess.run(["scontrol", "requeue", allocation.job_id], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"scontrol requeue {allocation.job_id}: {done.stderr.strip() or done.returncode}")


def _address(nodes: Sequence[str]) -> str:
    """Returns this machine's address as the others see it."""
    others = [node for node in nodes if node != os.environ.get("SLURMD_NODENAME")]
    return own_address(others[0]) if others else outward_address()


def _print_to(fd: int) -> None:
    os.dup2(fd, 1)


def _of_allocation(allocation: Allocation) -> str:
    """Returns what Slurm says of the allocation, "" when nobody knows. ConfigError when Slurm says that there is none."""
    command = job_command(allocation)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = done.stderr.strip().splitlines()
    if done.returncode != 0 and words:
        raise ConfigError(
            f"SLURM_JOB_ID={allocation.job_id}: Slurm does not know this allocation ({words[-1].strip()}); outside of one, unset "
            "SLURM_JOB_ID, or use --standalone"
        )
    return done.stdout


def _ask(command: list[str]) -> str:
    """Returns what a command of Slurm's prints, "" when it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
