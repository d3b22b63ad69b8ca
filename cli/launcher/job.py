"""A job as its launcher sees it: the supervisor, and nodes that are started and ended in one way or another.

The supervisor decides how the job ends; its exit code is the job's. The launcher starts the processes, the supervisor again when
it is lost, passes on the wish to stop and leaves nothing behind. How nodes are started is the business of `Nodes`: standalone.py
has them on this machine.
"""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from deadpool.cli.launcher.children import SUPERVISOR, Children, module_command, signal_hosted
from deadpool.cli.launcher.console import Progress, describe
from deadpool.cli.launcher.restarts import Restarts
from deadpool.host.addresses import split_host_port
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.host.lifetime import become_subreaper
from deadpool.proto.config import CHECKPOINT_SIGNAL, JobConfig, stop_signals
from deadpool.proto.shared_folder import share, unshare
from deadpool.proto.terms import CRASHED, clear_journal, journal_folder, newest_endpoint, read_outcome

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's before SIGTERM: no impatience
_USAGE = 2  # exit code of a process whose configuration cannot be used
_START_TIMEOUT_S = 60.0
_MARGIN_S = 2.0  # on top of the grace that ranks get: what an agent and the supervisor need to end themselves
_ASK_S, _ASK_EVERY_S = 1.0, 3.0  # whether a supervisor on another machine listens
_TAKEOVER_S = 10.0  # that another node needs to be the supervisor's home, once the old one counts as lost
_POLL_S = 0.2  # how often the events file is looked at; everything else wakes the launcher up


class Nodes(Protocol):
    """How the job's nodes are started and ended. Whatever is started for them is among the launcher's `children`.

    `host`: the address at which they reach a supervisor on this machine, "" when they are on it. `shares_folder`: they
    are on other machines, and find the job in the folder that all share. `linger_s`: told to end, they need so long to be gone.
    """

    @property
    def host(self) -> str: ...

    @property
    def shares_folder(self) -> bool: ...

    @property
    def linger_s(self) -> float: ...

    def open(self) -> None:
        """Makes what must be there before the supervisor; ConfigError when it cannot be had."""

    def start(self, for_agents: Sequence[str]) -> None:
        """Starts all. `for_agents`: further arguments of theirs."""

    def fds(self) -> list[int]:
        """Returns what `on_readable` is to be called for."""

    def on_readable(self) -> None: ...

    def any_left(self) -> bool:
        """Returns whether there are any, as far as the launcher can know."""

    def on_child_ended(self, name: str, exit_code: int) -> None:
        """One of the children has ended and is reaped."""

    def on_remains_gone(self) -> None:
        """Called after each death, once nothing that it left runs any more."""

    def on_event(self, event: dict[str, Any]) -> None:
        """An event of the job, a line of events.jsonl."""

    def poll(self) -> None:
        """Called every now and then."""

    def ask_to_stop(self) -> None:
        """Tells them to stop the job: no supervisor is there to be told."""

    def prepare_end(self) -> None:
        """Called before all children are told to end."""

    def close(self) -> None:
        """Nothing runs any more: removes what is left."""


class LaunchedJob:
    """`run()` once; it returns the exit code. `say` prints a line of ours. `for_supervisor`: further arguments of it."""

    def __init__(
        self,
        config: JobConfig,
        folder: Path,
        say: Callable[[str], None],
        for_supervisor: Sequence[str],
        nodes: Nodes,
        children: Children,
    ) -> None:
        self._config = config
        self._folder = folder
        self._for_supervisor = for_supervisor
        self._say = say
        self._nodes = nodes
        self._children = children
        self._progress = Progress(Path(config.log_dir) / "events.jsonl")
        self._stop_signals = stop_signals(config)
        self._signals: list[int] = []  # in order of arrival
        self._exit_code: int | None = None  # the supervisor's, once it has ended
        self._verdict: int | None = None  # the job's exit code, where the launcher knows better than the supervisor
        self._patient = True  # until a stop takes too long or a second signal comes
        self._restarts = Restarts()
        self._restart_s: float | None = None  # when a lost supervisor is started again
        self._wake_fd = -1
        self._silent_since_s: float | None = None  # the supervisor, which a node hosts
        self._ask_s = 0.0

    def run(self, greeting: str = "") -> int:
        """Returns the exit code. `greeting`: said once nothing is left that would be refused."""
        become_subreaper()
        with self._signals_noted():
            try:
                self._nodes.open()
                clear_journal(journal_folder(self._config))
                if greeting:
                    self._say(greeting)
                self._start()
                self._attend()
            finally:
                self._clear_up()
        if self._signals:
            return 128 + self._signals[0]
        return self._verdict or (1 if self._exit_code is None else self._exit_code)

    def _start(self) -> None:
        """Starts the supervisor and the agents, which wait for one that listens: all start at the same time."""
        folder = journal_folder(self._config)
        if self._nodes.shares_folder:
            share(self._folder, folder)
        for_agents: list[str] = []
        if self._config.journal:
            for_agents = ["--journal", str(folder), "--for-supervisor", json.dumps(list(self._for_supervisor))]
        else:
            if self._nodes.host:
                self._for_supervisor = [*self._for_supervisor, "--host", self._nodes.host]
            self._start_supervisor()
        self._nodes.start(for_agents)
        if not self._config.journal:
            self._until_it_listens()

    def _until_it_listens(self) -> None:
        endpoint = self._folder / "endpoint.json"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not endpoint.exists():
            self._wait(0.02)
            if self._exit_code is not None or self._signals:
                return
            if time.monotonic() > deadline:
                raise DeadpoolError(f"the supervisor does not listen after {_START_TIMEOUT_S:.0f} s; see {self._config.log_dir}")

    def _start_supervisor(self) -> None:
        own = ["--job-dir", str(self._folder), "--with-parent", *self._for_supervisor]
        self._restart_s = None
        self._restarts.started(time.monotonic())
        self._children.start(SUPERVISOR, [*module_command("deadpool.supervisor.main"), *own])

    def _attend(self) -> None:
        """Returns when the supervisor has ended, was told to end and did not, or a second signal asks for an immediate end."""
        stop_by = alone_until = None
        while self._exit_code is None and self._patient:
            self._wait(_POLL_S)
            self._report()
            now = time.monotonic()
            if self._config.journal:
                self._exit_code = read_outcome(journal_folder(self._config))
            if stop_by is not None and now > stop_by:
                self._patient = False
                return
            if self._restart_s is not None or (self._nodes.any_left() and not self._all_gone(now)):
                alone_until = None
            elif alone_until is None:
                alone_until = self._alone_until_s(now)
            alone = alone_until is not None and now > alone_until
            reason = self._reason_to_stop(alone=alone)
            if reason and self._restart_s is not None:
                return  # nobody is there to be told
            if reason and stop_by is None:
                self._say(f"{reason}: stopping")
                if alone and self._config.journal:
                    return  # the last node has taken the supervisor with it
                stop_by = now + self._config.end_timeout_s + _MARGIN_S
                self._tell_supervisor()
        self._report()

    def _all_gone(self, now_s: float) -> bool:
        """Returns whether all nodes are gone, the supervisor among them, so that no event says it: none is a child of ours, and
        nothing has listened for so long that another node would have taken over.
        """
        if not self._config.journal or self._children.started:
            return False
        if now_s >= self._ask_s:
            self._ask_s = now_s + _ASK_EVERY_S
            if _listens(newest_endpoint(journal_folder(self._config))[1]):
                self._silent_since_s = None
            elif self._silent_since_s is None:
                self._silent_since_s = now_s
        silent_s = 0.0 if self._silent_since_s is None else now_s - self._silent_since_s
        return silent_s > self._config.heartbeat_timeout_s * 2 + _TAKEOVER_S

    def _tell_supervisor(self) -> None:
        """To stop the job. Where a node hosts it, the nodes know where it is."""
        if self._config.journal:
            self._nodes.ask_to_stop()
            return
        listens = (self._folder / "endpoint.json").exists()  # before, it has no ranks to pass a signal on to, and only dies of it
        self._children.signal(SUPERVISOR, self._signals[0] if self._signals and listens else signal.SIGTERM)

    def _ask_for_checkpoint(self) -> None:
        if self._config.journal:
            signal_hosted(self._folder, CHECKPOINT_SIGNAL)
        else:
            self._children.signal(SUPERVISOR, CHECKPOINT_SIGNAL)

    def _alone_until_s(self, now_s: float) -> float:
        """A new supervisor has to find out first that nobody comes back."""
        patience_s = self._config.heartbeat_timeout_s * 2 if self._restarts.any else 0.0
        return now_s + _MARGIN_S + patience_s

    def _reason_to_stop(self, *, alone: bool) -> str:
        if self._signals:
            return f"{signal.Signals(self._signals[0]).name} (once more: immediately)"
        if alone:
            self._verdict = self._verdict or 1
            return "no node is left"
        return "a node could not start" if self._verdict else ""

    def _clear_up(self) -> None:
        """Ends every process that is left, politely first, and removes what they leave."""
        self._restart_s = None
        deadline_s = time.monotonic() + self._nodes.linger_s
        while self._patient and self._children.started and time.monotonic() < deadline_s and self._exit_code is not None:
            self._wait(_POLL_S)
        self._nodes.prepare_end()
        if self._patient:
            self._end(signal.SIGTERM, self._config.end_timeout_s + _MARGIN_S)
        self._end(signal.SIGKILL, _START_TIMEOUT_S)
        self._nodes.close()
        if self._nodes.shares_folder:
            unshare(journal_folder(self._config))

    def _end(self, signal_number: int, timeout_s: float) -> None:
        for name in list(self._children.started.values()):
            self._children.signal(name, signal_number)
        deadline = time.monotonic() + timeout_s
        while (self._children.started or self._children.kill_orphans()) and time.monotonic() < deadline:
            if signal_number != signal.SIGKILL and not self._patient:
                return
            self._wait(_POLL_S)

    def _wait(self, timeout_s: float) -> None:
        """Sleeps until a signal comes, then notes the signals and the deaths that there were."""
        if self._restart_s is not None and time.monotonic() >= self._restart_s and not self._signals:
            self._start_supervisor()
        fds = self._nodes.fds()
        readable = select.select([self._wake_fd, *fds], [], [], timeout_s)[0]
        if any(fd in readable for fd in fds):
            self._nodes.on_readable()
        if self._wake_fd not in readable:
            return
        numbers = os.read(self._wake_fd, 4096)
        self._signals += [number for number in numbers if number in self._stop_signals]
        if CHECKPOINT_SIGNAL in numbers and CHECKPOINT_SIGNAL not in self._stop_signals:
            self._ask_for_checkpoint()
        self._patient = self._patient and sum(number not in WARNINGS for number in self._signals) < 2
        if signal.SIGCHLD in numbers:
            for name, exit_code in self._children.reap():
                self._ended(name, exit_code)
            if not self._children.kill_orphans():
                self._nodes.on_remains_gone()

    def _ended(self, name: str, exit_code: int) -> None:
        if name != SUPERVISOR:
            self._nodes.on_child_ended(name, exit_code)
            if exit_code == _USAGE:  # it has said why
                self._verdict = _USAGE
            return
        delay_s = None if self._signals or self._verdict is not None else self._restarts.delay_s(exit_code, time.monotonic())
        if delay_s is not None:
            self._say(f"the supervisor was lost ({_how(exit_code)}): a new one takes over, the ranks go on")
            self._restart_s = time.monotonic() + delay_s
            return
        self._exit_code = exit_code
        if (exit_code < 0 or exit_code == CRASHED) and not self._signals and self._verdict is None:
            self._say(f"the supervisor was lost too often ({_how(exit_code)}): the job ends")
            self._verdict = 1

    def _report(self) -> None:
        for event in self._progress.new_events():
            self._nodes.on_event(event)
            if (line := describe(event)) and not (self._signals and event["event"] == "job_ended"):  # its own signal it has said
                self._say(line)
        self._nodes.poll()

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Inside, signals wake `_wait` up and do nothing else. One that was ignored (nohup) stays ignored."""
        self._wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        wanted = {*self._stop_signals, *([CHECKPOINT_SIGNAL] if self._config.checkpoint_dir else [])}
        noted = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN] + [signal.SIGCHLD]
        before = {number: signal.signal(number, lambda *_: None) for number in noted}
        previous_fd = signal.set_wakeup_fd(write_fd)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake_fd)
            os.close(write_fd)


def _listens(endpoint: str) -> bool:
    try:
        socket.create_connection(split_host_port(endpoint), _ASK_S).close()
    except (OSError, ConfigError):
        return False
    return True


def _how(exit_code: int) -> str:
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
