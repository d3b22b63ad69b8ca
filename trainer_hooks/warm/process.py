"""The warm process: imports once what the job's script imports of torch, then forks ranks in milliseconds.

    python -P -m deadpool.trainer_hooks.warm.process --control FD --parent PID

It has one thread, opens nothing and runs none of the user's code before a fork. A forked rank is an orphan immediately (its
direct parent ends), so the agent, a subreaper, becomes its parent and sees its exit; if the agent dies, so does the rank.

A node has one. Where one machine plays several nodes, the launcher has one too, and forks the agents from it, each with a copy
of it as its warm process: torch is imported once, not once for each node.
"""

import argparse
import ctypes
import gc
import io
import os
import signal
import socket
import sys
from typing import NoReturn

from deadpool.host.lifetime import signal_at_parents_death
from deadpool.host.limits import lower_open_files
from deadpool.proto import warm_wire
from deadpool.proto.version import refusal
from deadpool.proto.warm_wire import INHERITED, OPEN_FILES, Fork, Forked, ForkKind, Prepare, Ready
from deadpool.trainer_hooks.checkpoints.writer import write_checkpoints
from deadpool.trainer_hooks.warm.imports import import_ahead, import_for_all, torch_missing
from deadpool.trainer_hooks.warm.numa import bind_to_cpus, own_local_rank
from deadpool.trainer_hooks.warm.script import Command
from deadpool.trainer_hooks.warm.store import serve_stores

_CLONE_NEWNET = 0x40000000
_PID_BYTES = 8
_TERMINATING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_path = list(sys.path)


def main() -> None:
    arguments = _arguments()
    control, parent = socket.socket(fileno=arguments.control), arguments.parent
    _die_with(parent, signal.SIGKILL)
    while True:
        for number in _TERMINATING:  # Slurm's, to every process of a node: the agent says when it is over
            signal.signal(number, signal.SIG_IGN)
        command, problem = _prepare(control)
        order, fds = _serve(control, parent, problem)
        # Only a forked child gets here, with a short stack of its own.
        control.close()
        _become(order, fds)
        match order.kind:
            case ForkKind.PROGRAM:
                control, parent = _become_program(order, fds[2:], parent)  # returns in the copy only
            case ForkKind.STORE:
                serve_stores(socket.socket(fileno=fds[2]))
            case ForkKind.CHECKPOINTS:
                sys.path[:] = _path  # nothing of the user's is imported here
                write_checkpoints(socket.socket(fileno=fds[2]), order.arguments)
                sys.exit()
            case ForkKind.RANK:
                local_rank = own_local_rank(os.environ)
                bind_to_cpus(local_rank)
                command.for_rank(local_rank).run()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deadpool.trainer_hooks.warm.process")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    return parser.parse_args()


def _prepare(control: socket.socket) -> tuple[Command, str]:
    """Waits for what to be ready for, and gets ready. Returns it, and why it cannot be run."""
    received = _hear(control)
    if received is None:
        os._exit(0)
    order, _ = received
    assert isinstance(order, Prepare), order
    if reason := refusal("whoever starts the ranks", order.version):
        _say(control, Ready(problem=f"{sys.executable}: {reason}"))
        os._exit(0)
    _settle_environment(order)
    command = Command(entry=order.entry, arguments=order.arguments, fresh=order.fresh, safe_path=order.safe_path)
    if not order.arguments:
        import_for_all()
        _freeze()
        _say(control, Ready())
        return command, ""
    sys.path[:] = [*command.import_path(), *_path]
    problem = command.problem() or torch_missing()
    source = command.source()
    if not problem and source is not None and not command.fresh:
        import_ahead(source)
    _freeze()
    _say(control, Ready(problem=problem))
    return command, problem


def _hear(control: socket.socket) -> tuple[warm_wire.Frame, list[int]] | None:
    """Returns what the parent says; None when it has closed its end."""
    try:
        return warm_wire.receive(control)
    except ConnectionError:  # it has, with something unread
        return None


def _say(control: socket.socket, frame: warm_wire.Frame) -> None:
    """Ends the process when the parent does not hear it any more."""
    try:
        warm_wire.send(control, frame)
    except ConnectionError:
        os._exit(0)


def _freeze() -> None:
    """Takes all that was imported out of the collector's sight: no rank walks through it, and copies its pages, ever again.

    A full collection costs a rank 0.4 s otherwise, and its exit 1.6 s.
    """
    gc.collect()
    gc.freeze()


def _settle_environment(order: Prepare) -> None:
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)


def _serve(control: socket.socket, parent: int, problem: str) -> tuple[Fork, list[int]]:
    """Forks as the parent asks until it closes its end, then exits. Returns in the forked children."""
    while (received := _hear(control)) is not None:
        order, fds = received
        if isinstance(order, Prepare):  # what it was told at first was a guess
            _settle_environment(order)
            _say(control, Ready(problem=problem))
            continue
        assert isinstance(order, Fork), order
        pid = _fork_orphan(parent)
        if pid == 0:
            return order, fds
        for fd in fds:
            os.close(fd)
        _say(control, Forked(request=order.request, pid=pid))
    os._exit(0)


def _fork_orphan(parent: int) -> int:
    """Forks a child of the parent's and returns its pid; 0 in the child, once the parent is its parent."""
    read_fd, write_fd = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        _cannot_fork(f" ({error.strerror})")
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
        while os.getppid() == between:  # it exits immediately
            os.sched_yield()
        _die_with(parent, signal.SIGKILL)
        return 0
    os.close(write_fd)
    told = os.read(read_fd, _PID_BYTES)
    os.close(read_fd)
    os.waitpid(between, 0)
    if not told:
        _cannot_fork("")
    return int.from_bytes(told, "little")


def _cannot_fork(why: str) -> NoReturn:
    """Ends this process; the agent starts another one a few times, and then refuses the job."""
    sys.exit(f"deadpool: the warm process cannot fork{why}: out of memory, or of processes (ulimit -u)?")


def _die_with(parent: int, how: signal.Signals) -> None:
    """The parent's death sends this process a signal, even if it was a moment ago."""
    if not signal_at_parents_death(how, parent):
        os._exit(1)


def _become_program(order: Fork, namespaces: list[int], parent: int) -> tuple[socket.socket, int]:
    """Becomes the program, whose child is a copy of this process; in the copy, returns its control and its parent.

    SIGTERM at the parent's death, not SIGKILL: an agent has ranks to end.
    """
    _die_with(parent, signal.SIGTERM)
    for namespace in namespaces:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)
    program = os.getpid()
    ours, theirs = socket.socketpair()
    copy = os.fork()
    if copy:
        theirs.close()
        ours.set_inheritable(True)
        os.chdir(order.folder or os.curdir)
        os.execve(order.arguments[0], order.arguments, {**order.environment, INHERITED: f"{ours.fileno()}:{copy}"})
    ours.close()
    _die_with(program, signal.SIGKILL)
    os.setsid()
    return theirs, program


def _default_signals() -> None:
    """As in a fresh interpreter, whatever the agent had set."""
    for number in _TERMINATING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _open_streams() -> None:
    """Opens them as `python -u` does, torchrun's way: half a line shows immediately, and what was written outlives a SIGKILL."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)  # None where the launcher had no such stream
        encoding, errors = (before.encoding, before.errors) if before is not None else ("utf-8", "backslashreplace")
        if before is not None:
            before.reconfigure(line_buffering=True)  # whoever has it already (a logging handler) goes on with it
        raw = io.FileIO(fd, "wb", closefd=False)
        stream = io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="\n", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _become(order: Fork, fds: list[int]) -> None:
    """Turns the fork into a process of its own: session, standard streams, environment, randomness."""
    if order.kind in (ForkKind.RANK, ForkKind.PROGRAM):  # for the others as well the agent says when it is over
        _default_signals()
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(fd, target)
        os.close(fd)
    _open_streams()
    os.environ.update(order.environment)
    if (allowed := os.environ.pop(OPEN_FILES, "")) and order.kind is ForkKind.RANK:
        lower_open_files(int(allowed))
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        multiprocessing.current_process().authkey = os.urandom(32)
    # As after imports of its own, no two ranks draw the same numbers; Python's random sees to that by itself.
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


if __name__ == "__main__":
    main()
