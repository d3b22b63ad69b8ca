"""The agent's side of the warm process: starts it, asks it for forks, starts it again should it die."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from deadpool.agent.processes.environment import loading_environment
from deadpool.host.console import tell
from deadpool.host.errors import ConfigError
from deadpool.host.script import is_application
from deadpool.proto import warm_wire
from deadpool.proto.config import Entry, JobConfig
from deadpool.proto.version import own_version
from deadpool.proto.warm_wire import INHERITED, Fork, Forked, ForkKind, FrameReader, Prepare, Ready

_MODULE = "deadpool.trainer_hooks.warm.process"
_RECEIVE_BYTES = 1 << 16
_RESTARTS_MAX = 3


class WarmProcess:
    """`start()` first. Forks asked for before it is ready, or while it is started again, wait.

    `on_forked(request, pid)`: the process exists and is (or is just becoming) a child of this one. `on_problem(reason)`: no
    process of this job can run here. `on_lost()`: it died and is started again; forks that it had not answered may have
    left a process behind, and are asked for once more.
    """

    def __init__(
        self,
        config: JobConfig,
        environment: dict[str, str],
        *,
        on_forked: Callable[[int, int], None],
        on_problem: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._config = config
        self._environment = environment
        self._on_forked, self._on_problem, self._on_lost = on_forked, on_problem, on_lost
        self._asked: dict[int, tuple[Fork, tuple[int, ...]]] = {}
        self._control: socket.socket | None = None
        self._reader = FrameReader()
        self._ready = False
        self._restarts = 0
        self.pid = 0

    @property
    def outstanding(self) -> bool:
        """Returns whether a fork was asked for whose process is not known yet."""
        return bool(self._asked)

    def start(self) -> None:
        """Takes the warm process that this one was given, or starts a new one."""
        try:
            self.pid, control = take_inherited() or spawn_warm(self._config.python, self._environment)
            warm_wire.send(control, preparation(self._config, self._environment))
        except ConnectionError:
            pass  # it died: heard of below
        except OSError as error:
            self._on_problem(f"{self._config.python}: cannot be started ({error.strerror}); give another with --python")
            return
        self._control, self._reader, self._ready = control, FrameReader(), False
        asyncio.get_running_loop().add_reader(control, self._readable)

    def fork(
        self,
        request: int,
        kind: ForkKind,
        environment: dict[str, str],
        fds: tuple[int, ...],
        arguments: tuple[str, ...] = (),
    ) -> None:
        """Asks for a process. The descriptors are the caller's; they must stay open until `on_forked`."""
        self._asked[request] = (Fork(request=request, kind=kind, environment=environment, arguments=arguments), fds)
        if self._ready:
            self._send(request)

    def withdraw(self, request: int) -> bool:
        """Returns True when the fork had not been sent yet and is forgotten now."""
        if self._ready:
            return False
        return self._asked.pop(request, None) is not None

    def _send(self, request: int) -> None:
        assert self._control is not None
        try:
            warm_wire.send(self._control, *self._asked[request])
        except OSError:
            self._lost()

    def _readable(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except ConnectionError:
            data = b""
        if not data:
            self._lost()
            return
        for frame in self._reader.feed(data):
            match frame:
                case Ready(problem=problem):
                    self._become_ready(problem)
                case Forked(request=request, pid=pid):
                    del self._asked[request]
                    self._on_forked(request, pid)
                case _:
                    raise ConfigError(f"the warm process sent {frame}: is another version of deadpool installed?")

    def _become_ready(self, problem: str) -> None:
        if self._ready:
            return  # said a second time, of what was prepared early
        if problem:
            self._on_problem(problem)
            return
        self._ready = True
        for request in list(self._asked):
            if self._ready:  # it has not died meanwhile
                self._send(request)

    def _lost(self) -> None:
        """Nothing is known of it but that its end of the connection is closed: it is dead, or as good as."""
        if self._control is None:
            return
        was_ready = self._ready
        status = self.close()
        self._restarts += 1
        if not was_ready or self._restarts > _RESTARTS_MAX:
            code = os.waitstatus_to_exitcode(status)
            self._on_problem(
                f"{self._config.python} -m {_MODULE} ended with {code} before it could start a rank; see its message above"
            )
            return
        tell(f"deadpool: the warm process {self.pid} died ({status}); starting it again")
        self._on_lost()
        self.start()

    def kill(self) -> None:
        if self._control is not None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Ends it and returns its wait status."""
        if self._control is None:
            return 0
        asyncio.get_running_loop().remove_reader(self._control)
        self.kill()
        self._control.close()
        self._control, self._ready = None, False
        return os.waitpid(self.pid, 0)[1]


def start_early(config: JobConfig) -> None:
    """Starts a warm process at the very beginning of this one, which takes it over later as if it had been given it.

    torch is being imported while we import what we need ourselves, and find the supervisor.
    """
    environment = {**os.environ, **loading_environment(config, os.environ)}
    if INHERITED in os.environ:
        return
    with contextlib.suppress(OSError):  # said when it is tried again
        pid, control = spawn_warm(config.python, environment)
        warm_wire.send(control, preparation(config, environment))
        os.environ[INHERITED] = f"{control.detach()}:{pid}"


def take_inherited() -> tuple[int, socket.socket] | None:
    """Returns (pid, control) of the warm process that this one was given as its child when it was started; once."""
    told = os.environ.pop(INHERITED, "")
    if not told:
        return None
    fd, pid = map(int, told.split(":"))
    os.set_inheritable(fd, False)
    return pid, socket.socket(fileno=fd)


def spawn_warm(python: str, environment: Mapping[str, str]) -> tuple[int, socket.socket]:
    """Starts a warm process and returns (pid, control). OSError when there is no such interpreter."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.set_inheritable(True)
        arguments = [python, "-P", "-m", _MODULE, "--control", str(theirs.fileno()), "--parent", str(os.getpid())]
        try:
            pid = os.posix_spawnp(
                python,
                arguments,
                dict(environment),
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT],
            )
        except OSError:
            ours.close()
            raise
    return pid, ours


def preparation(config: JobConfig, environment: Mapping[str, str]) -> Prepare:
    application = config.entry is Entry.SCRIPT and is_application(config.command[0])
    return Prepare(
        version=own_version(),
        environment=dict(environment),
        folder=os.getcwd(),
        entry=config.entry,
        arguments=config.command,
        fresh=config.start_method == "spawn" or config.entry is Entry.PROGRAM or application,
        safe_path=bool(environment.get("PYTHONSAFEPATH")),
    )


def error_path(job_dir: Path, node_id: str, process: int) -> Path:
    """Where a rank's process leaves the traceback of an uncaught exception (TORCHELASTIC_ERROR_FILE)."""
    return job_dir / f"{node_id}-error-{process}.json"
