"""The warm process of a node: imports once what the job's script imports of torch, then forks ranks in milliseconds.

    python -P -m deadpool.trainer_hooks.warm --control FD --agent PID --entry script [--fresh] [--safe-path] -- script args...

It has one thread, opens nothing and runs none of the user's code before a fork. A forked rank is an orphan at once (its
direct parent ends), so the agent, a subreaper, becomes its parent and sees its exit; if the agent dies, so does the rank.
"""

import argparse
import ctypes
import os
import signal
import socket
import sys

from deadpool.proto import warm_wire
from deadpool.proto.config import Entry
from deadpool.proto.errors import DeadpoolError
from deadpool.proto.warm_wire import Fork, Forked, ForkKind, Ready
from deadpool.trainer_hooks.numa import bind_to_cpus, own_local_rank
from deadpool.trainer_hooks.warm_imports import import_ahead, torch_missing
from deadpool.trainer_hooks.warm_script import Command
from deadpool.trainer_hooks.warm_store import serve_stores

_PR_SET_PDEATHSIG = 1
_PID_BYTES = 8
_TERMINATING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    arguments = _arguments()
    _die_with(arguments.agent)
    _default_signals()
    command = Command(
        entry=Entry(arguments.entry), arguments=tuple(arguments.command), fresh=arguments.fresh, safe_path=arguments.safe_path
    )
    sys.path[:0] = command.import_path()
    control = socket.socket(fileno=arguments.control)
    problem = command.problem() or torch_missing()
    source = command.source()
    if not problem and source is not None and not command.fresh:
        import_ahead(source)
    warm_wire.send(control, Ready(problem=problem))
    order, fds = _serve(control, arguments.agent)
    # Only a forked child gets here, with a short stack of its own.
    control.close()
    _become(order, fds)
    if order.kind is ForkKind.STORE:
        serve_stores(socket.socket(fileno=fds[2]))
    else:
        local_rank = own_local_rank(os.environ)
        bind_to_cpus(local_rank)
        command.for_rank(local_rank).run()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deadpool.trainer_hooks.warm")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--agent", type=int, required=True)
    parser.add_argument("--entry", choices=list(Entry), required=True)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--safe-path", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    arguments.command = arguments.command[1:]  # without the "--"
    return arguments


def _serve(control: socket.socket, agent: int) -> tuple[Fork, list[int]]:
    """Forks as the agent asks until it closes its end, then exits. Returns in the forked children."""
    while (received := warm_wire.receive(control)) is not None:
        order, fds = received
        assert isinstance(order, Fork), order
        pid = _fork_orphan(agent)
        if pid == 0:
            return order, fds
        for fd in fds:
            os.close(fd)
        warm_wire.send(control, Forked(request=order.request, pid=pid))
    os._exit(0)


def _fork_orphan(agent: int) -> int:
    """Forks a child of the agent's and returns its pid; 0 in the child, once the agent is its parent."""
    read_fd, write_fd = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            print(f"fork: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        if pid:
            os.write(write_fd, pid.to_bytes(_PID_BYTES, "little"))
            os._exit(0)
        os.close(read_fd)
        os.close(write_fd)
        while os.getppid() == between:  # it exits at once
            os.sched_yield()
        _die_with(agent)
        return 0
    os.close(write_fd)
    told = os.read(read_fd, _PID_BYTES)
    os.close(read_fd)
    os.waitpid(between, 0)
    if not told:
        raise DeadpoolError("cannot fork: out of memory or of processes?")
    return int.from_bytes(told, "little")


def _die_with(agent: int) -> None:
    """Makes the agent's death this process's, even if it was a moment ago."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != agent:
        os._exit(1)


def _default_signals() -> None:
    """As in a fresh interpreter, whatever the agent had set."""
    for number in _TERMINATING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _become(order: Fork, fds: list[int]) -> None:
    """Turns the fork into a process of its own: session, standard streams, environment, randomness."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(fd, target)
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # lines show at once, and outlive a SIGKILL
    os.environ.update(order.environment)
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        multiprocessing.current_process().authkey = os.urandom(32)
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # as after an import of its own: no two ranks draw the same numbers (Python's random does so by itself)


if __name__ == "__main__":
    main()
