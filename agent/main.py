"""deadpool-agent: the one process of a node that starts ranks, watches them and holds the vault."""

import argparse
import asyncio
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path

from deadpool.agent import needs
from deadpool.agent.arguments import NodeArguments
from deadpool.agent.job_files import TOKEN_VARIABLE, JobFiles, open_job_files
from deadpool.agent.processes.warm import start_early
from deadpool.host.addresses import interface_address, own_address, split_host_port
from deadpool.host.console import tell
from deadpool.host.errors import ConfigError
from deadpool.host.lifetime import become_subreaper, signal_at_parents_death
from deadpool.host.limits import no_process_left, raise_open_files, too_few_processes
from deadpool.proto.config import from_json
from deadpool.proto.terms import newest_endpoint

_LOCAL = "127.0.0.1"
_GRACE_S = 5.0  # for ranks, after a signal
_ORPHAN_GRACE_S = 2.0  # when the parent has died: everything should be gone within 5 s
_SAME_WISH_S = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_JOB_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # what they mean, the job's configuration says


class _Console(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(self.format(record))


def main() -> None:
    arguments = _arguments()
    parent, open_files = arguments.with_parent, raise_open_files()
    for number in _JOB_SIGNALS:  # too early to pass it on
        signal.signal(number, lambda *_: None)
    logging.basicConfig(level=logging.INFO, format=f"deadpool-agent[{arguments.node_id}]: %(message)s", handlers=[_Console()])
    become_subreaper()
    if parent is not None:
        parent = parent or os.getppid()
        if not signal_at_parents_death(signal.SIGTERM, parent) or not _is_launcher(parent):
            sys.exit(f"deadpool-agent[{arguments.node_id}]: the process that started it is gone")
    try:
        if arguments.job_dir is not None and (known := arguments.job_dir / "job.json").exists():
            config = from_json(known.read_text())
            if reason := too_few_processes(needs.processes(config)):
                raise ConfigError(reason)
            start_early(config)
        with open_job_files(
            job_dir=arguments.job_dir,
            job=arguments.job,
            shared=arguments.shared,
            supervisor=arguments.supervisor,
            node_id=arguments.node_id,
        ) as found:
            node = NodeArguments(
                job_dir=found.job_dir,
                node_id=arguments.node_id,
                hint=arguments.hint,
                host=_host(arguments, found),
                supervisor=arguments.supervisor,
                token=found.token,
                open_files=open_files,
                shared=found.shared,
                remote=found.remote,
                ends_as_job=arguments.ends_as_job,
                journal=arguments.journal,
                for_supervisor=tuple(json.loads(arguments.for_supervisor)),
            )
            sys.exit(asyncio.run(_run(node, parent)))
    except (ConfigError, OSError) as error:
        tell(f"deadpool-agent[{arguments.node_id}]: {error}")
        sys.exit(2)


def _host(arguments: argparse.Namespace, found: JobFiles) -> str:
    """Returns the address that this node publishes: the one that was named, else that with which it speaks to the supervisor."""
    if arguments.interface is not None:
        return interface_address(arguments.interface)
    if arguments.host is not None or not found.remote:
        return str(arguments.host or _LOCAL)
    supervisor = arguments.supervisor or (newest_endpoint(found.shared)[1] if found.shared is not None else "")
    if not supervisor:
        raise ConfigError(f"{found.shared}: no supervisor has listened yet; name this node's address with --host or --interface")
    return own_address(split_host_port(supervisor)[0])


async def _run(arguments: NodeArguments, parent: int | None) -> int:
    from deadpool.agent.runtime import NodeRuntime  # grpc and all: while torch is being imported

    node = NodeRuntime(arguments)
    loop = asyncio.get_running_loop()

    last_s = -math.inf

    def stop(number: int) -> None:
        nonlocal last_s
        again, last_s = time.monotonic() - last_s < _SAME_WISH_S, time.monotonic()
        if again:  # a signal to all of a container's processes comes from whoever passes it on as well
            return
        orphaned = parent is not None and os.getppid() != parent
        reason = signal.Signals(number).name if parent is None else ""  # a launcher speaks for itself
        reason = "the process that started this agent is gone" if orphaned else reason
        node.stop(reason, _ORPHAN_GRACE_S if orphaned else _GRACE_S, 128 + number)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    for number in _JOB_SIGNALS:
        loop.add_signal_handler(number, node.signalled, number)
    if parent is not None and os.getppid() != parent:  # between the check and the handler
        stop(signal.SIGTERM)
    try:
        return await node.run()
    except (OSError, RuntimeError) as error:
        if not (reason := no_process_left(error)):
            raise
        tell(f"deadpool-agent[{arguments.node_id}]: {reason}")
        os._exit(1 if node.is_set_up else 2)  # the ordinary way down needs what there is none of; its children die with it


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deadpool-agent", description="Runs one node's part of a job.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--job", metavar="JOB", help="a job of yours: this node joins its pool")
    which.add_argument("--job-dir", type=Path, help="the job's folder, with its token")
    which.add_argument(
        "--shared",
        type=Path,
        metavar="DIR",
        help="the job's folder that its machines share: LOG_DIR/journal, or DIR/JOB of --journal",
    )
    own_name = f"{socket.gethostname().partition('.')[0][:24]}-{os.getpid()}"
    parser.add_argument("--node-id", default=own_name, help="the node's name (default: the host's, with a number)")
    parser.add_argument("--hint", type=int, default=-1, help="the node's index at launch")
    own = parser.add_mutually_exclusive_group()
    own.add_argument("--host", help="the address at which other nodes reach this one (default: that towards the supervisor)")
    own.add_argument("--interface", metavar="NAME", help="the network interface whose address that is")
    parser.add_argument(
        "--supervisor", metavar="HOST:PORT", help=f"where it listens; with --job and ${TOKEN_VARIABLE}: a job on another machine"
    )
    parser.add_argument("--journal", type=Path, help="the job's folder that all nodes share: this one may start the supervisor")
    parser.add_argument("--ends-as-job", action="store_true", help="exit with the job's exit code")
    parser.add_argument("--for-supervisor", metavar="JSON", default="[]", help="a list of arguments for it")
    parser.add_argument(
        "--with-parent",
        type=int,
        nargs="?",
        const=0,
        metavar="PID",
        help="end when the parent (of that pid) ends, even if it is gone already",
    )
    return parser.parse_args()


def _is_launcher(parent: int) -> bool:
    """Returns whether the parent can be who started this process. Pid 1 can only where it is a launcher of ours."""
    return parent != 1 or b"deadpool" in Path("/proc/1/cmdline").read_bytes()


if __name__ == "__main__":
    main()
