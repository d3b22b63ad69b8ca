"""One node of a job that is started on its own machine: the agent, and above it this process, which clears up after it.

    python -m deadpool.cli.nodes.wrapper --slurm --shared DIR [agent's arguments]

It stands where the launcher stands for nodes on its own machine: what the agent leaves when it is killed is killed as well, and
its vault is removed. Signals go on to the agent.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deadpool.cli.launcher.children import Children, module_command
from deadpool.deploy.slurm.allocation import node_states, nodes_command, task_of
from deadpool.host.addresses import interface_address, own_address, split_host_port
from deadpool.host.console import tell
from deadpool.host.errors import ConfigError
from deadpool.host.lifetime import become_subreaper, signal_at_parents_death
from deadpool.host.vault_folders import VAULT_ROOT, remove_vault, vault_folder
from deadpool.proto.shared_folder import read_shared, stand_where_the_launcher_does
from deadpool.proto.terms import newest_endpoint, read_outcome

_AGENT = "agent"
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SHARED_S = 60.0
_KILL_S = 60.0  # the kernel may need a while to end a process that holds much memory
_POLL_S = 0.2
_ASK_SLURM_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="deadpool-node", description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="the folder that the job's machines share")
    parser.add_argument("--slurm", action="store_true", help="a task of the job's step: node, index and address from there")
    parser.add_argument(
        "--launcher", metavar="NODE", help="where the launcher is: it has started this task ('': on none of Slurm's nodes)"
    )
    parser.add_argument("--interface", help="the network interface whose address others reach")
    parser.add_argument("--node-id", default="", help="the node's name")
    arguments, for_agent = parser.parse_known_args()
    try:
        sys.exit(run(arguments, for_agent))
    except (ConfigError, OSError) as error:
        tell(f"deadpool-node[{arguments.node_id or os.uname().nodename}]: {error}")
        sys.exit(2)


def run(arguments: argparse.Namespace, for_agent: list[str]) -> int:
    """Returns the agent's exit code, 128+n when it was killed."""
    signal_at_parents_death(signal.SIGTERM, os.getppid())
    node_id, own, host = arguments.node_id, [], ""
    if arguments.slurm:
        task = task_of(os.environ)
        node_id = task.node
        host = interface_address(arguments.interface) if arguments.interface else own_address(task.launched_from)
        own = ["--host", host]
        if arguments.launcher is not None:  # else a node of another allocation: it takes a free index
            own += ["--hint", str(task.number)]
    shared = arguments.shared.absolute()
    job_id = json.loads(read_shared(shared, _SHARED_S)[1])["job_id"]
    stand_where_the_launcher_does(shared)
    exit_code = live(job_id, node_id, ["--shared", str(shared), "--node-id", node_id, *own, *for_agent])
    if arguments.launcher not in (None, "", node_id) and _hosted_the_end(shared, host):
        _end_allocation(arguments.launcher)
    return exit_code


def live(job_id: str, node_id: str, options: Sequence[str]) -> int:
    """Runs the node's agent with these options; returns its exit code, 128+n when it was killed. Nothing is left of it."""
    become_subreaper()
    children = Children()
    with _woken(children) as wait:
        children.start(_AGENT, [*module_command("deadpool.agent.main"), "--with-parent", *options])
        while (exit_code := wait(None)) is None:
            pass
        deadline_s = time.monotonic() + _KILL_S
        while children.kill_orphans() and time.monotonic() < deadline_s:
            wait(_POLL_S)
    remove_vault(vault_folder(VAULT_ROOT, job_id, node_id))
    return exit_code if exit_code >= 0 else 128 - exit_code


def _hosted_the_end(shared: Path, host: str) -> bool:
    """Returns whether the job is over, and the supervisor that ended it was on this node in place of an earlier one."""
    term, endpoint = newest_endpoint(shared)
    return read_outcome(shared) is not None and term > 1 and split_host_port(endpoint)[0] == host


def _end_allocation(launcher: str) -> None:
    """The job is over, and the launcher will end this step, unless its node is lost: then nobody else ends the allocation."""
    while True:
        done = subprocess.run(nodes_command([launcher]), capture_output=True, text=True, check=False)
        state = node_states(done.stdout).get(launcher)
        if state is not None and state.down:
            print(
                f"deadpool: {launcher}, where the launcher was, is {state.text}: the job is done, the allocation ends", flush=True
            )
            subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=False)
            return
        time.sleep(_ASK_SLURM_S)


@contextmanager
def _woken(children: Children) -> Iterator["Wait"]:
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (*_PASSED_ON, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    previous_fd = signal.set_wakeup_fd(write_fd)
    try:
        yield Wait(children, read_fd)
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)


class Wait:
    """Sleeps until a signal comes; passes it on, or reaps. Returns the agent's exit code (minus a signal) once it has ended."""

    def __init__(self, children: Children, fd: int) -> None:
        self._children, self._fd = children, fd

    def __call__(self, timeout_s: float | None) -> int | None:
        select.select([self._fd], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._fd, 4096):
                if number != signal.SIGCHLD:
                    self._children.signal(_AGENT, signal.SIGTERM if number == signal.SIGHUP else number)
        for _, exit_code in self._children.reap():
            return exit_code
        return None


if __name__ == "__main__":
    main()
