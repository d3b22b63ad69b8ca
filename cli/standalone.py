"""One job on this machine: a supervisor, an agent for each node, and the launcher above them until the end.

The supervisor decides how the job ends; its exit code is the job's. The launcher starts the processes, the supervisor again when
it is lost, passes on the wish to stop, clears up after dead agents and leaves nothing behind.
"""

import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from deadpool.cli.netns import Networks, open_networks
from deadpool.cli.processes import Children, become_subreaper, module_command, signal_hosted, vault_folder
from deadpool.cli.progress import Progress, describe
from deadpool.cli.restarts import Restarts
from deadpool.cli.warm_nodes import WarmNodes, open_warm_nodes
from deadpool.proto.config import JobConfig, stop_signals
from deadpool.proto.errors import DeadpoolError
from deadpool.proto.terms import CRASHED, clear_journal, journal_folder, read_outcome

_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's before SIGTERM: no impatience
_SUPERVISOR = "supervisor"
_USAGE = 2  # exit code of a process whose configuration cannot be used
_START_TIMEOUT_S = 60.0
_MARGIN_S = 2.0  # on top of the grace that ranks get: what an agent and the supervisor need to end themselves
_POLL_S = 0.2  # how often the events file is looked at; everything else wakes the launcher up


class StandaloneJob:
    """`run()` once; it returns the exit code. `say` prints a line of ours. `for_supervisor`: further arguments of it."""

    def __init__(self, config: JobConfig, folder: Path, say: Callable[[str], None], for_supervisor: Sequence[str]) -> None:
        self._config = config
        self._folder = folder
        self._for_supervisor = for_supervisor
        self._say = say
        self._progress = Progress(Path(config.log_dir) / "events.jsonl")
        self._children = Children()
        self._node_ids = [f"node{index}" for index in range(config.nnodes + config.spares)]
        self._networks: Networks | None = None
        self._warm: WarmNodes | None = None  # while agents are being forked from it
        self._frozen: set[str] = set()
        self._to_boot: set[str] = set()
        self._for_agents: list[str] = []  # further arguments of them
        self._stop_signals = stop_signals(config)
        self._signals: list[int] = []  # in order of arrival
        self._dead_nodes: list[str] = []  # their vaults are removed once nothing of them runs
        self._exit_code: int | None = None  # the supervisor's, once it has ended
        self._verdict: int | None = None  # the job's exit code, where the launcher knows better than the supervisor
        self._patient = True  # until a stop takes too long or a second signal comes
        self._restarts = Restarts()
        self._restart_s: float | None = None  # when a lost supervisor is started again
        self._wake_fd = -1

    def run(self) -> int:
        become_subreaper()
        with self._signals_noted():
            try:
                if self._config.netns:
                    self._networks = open_networks(self._node_ids)
                self._start()
                self._attend()
            finally:
                self._clear_up()
        if self._signals:
            return 128 + self._signals[0]
        return self._verdict or (1 if self._exit_code is None else self._exit_code)

    def _start(self) -> None:
        """Starts the supervisor and the agents."""
        clear_journal(journal_folder(self._config))
        networks = self._networks
        if networks is not None and not self._config.journal:
            self._for_supervisor = [*self._for_supervisor, "--host", networks.host]
        if self._config.journal:
            folder = str(journal_folder(self._config))
            self._for_agents = ["--journal", folder, "--for-supervisor", json.dumps(list(self._for_supervisor))]
        else:
            self._start_supervisor()
        self._warm = open_warm_nodes(self._config, len(self._node_ids))
        if self._warm is not None:
            self._children.tolerate(self._warm.pid)
            self._children.expecting = True
        for node_id in self._node_ids:  # agents wait for a supervisor that listens: all start at the same time
            self._start_node(node_id)
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
        self._children.start(_SUPERVISOR, [*module_command("deadpool.supervisor.main"), *own])

    def _attend(self) -> None:
        """Returns when the supervisor has ended, was told to end and did not, or a second signal asks for an end at once."""
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
            if self._agents_left() or self._restart_s is not None:
                alone_until = None
            elif alone_until is None:
                alone_until = self._alone_until_s(now)
            reason = self._reason_to_stop(alone=alone_until is not None and now > alone_until)
            if reason and self._restart_s is not None:
                return  # nobody is there to be told
            if reason and stop_by is None:
                self._say(f"{reason}: stopping")
                stop_by = now + self._config.end_timeout_s + _MARGIN_S
                self._tell_supervisor()
        self._report()

    def _tell_supervisor(self) -> None:
        """To stop the job. Where a node hosts it and it does not live just now, the nodes are told."""
        if not self._config.journal:
            self._children.signal(_SUPERVISOR, self._signals[0] if self._signals else signal.SIGTERM)
        elif not signal_hosted(self._folder):
            for node_id in self._node_ids:
                self._children.signal(node_id, signal.SIGTERM)

    def _alone_until_s(self, now_s: float) -> float:
        """A new supervisor has to find out first that nobody comes back."""
        patience_s = self._config.heartbeat_timeout_s * 2 if self._restarts.any else 0.0
        return now_s + _MARGIN_S + patience_s

    def _reason_to_stop(self, *, alone: bool) -> str:
        if self._signals:
            return f"{signal.Signals(self._signals[0]).name} (once more: at once)"
        if alone:
            self._verdict = self._verdict or 1
            return "no node is left"
        return "a node could not start" if self._verdict else ""

    def _clear_up(self) -> None:
        """Ends every process that is left, politely first, and removes the vaults."""
        self._restart_s = None
        if self._warm is not None:
            self._warm.close()
            self._warm, self._children.expecting = None, False
        for node_id in self._frozen:  # it can be told to end only awake
            self._children.thaw(node_id)
        if self._patient:
            self._end(signal.SIGTERM, self._config.end_timeout_s + _MARGIN_S)
        self._end(signal.SIGKILL, _START_TIMEOUT_S)
        self._remove_vaults(self._node_ids)
        if self._networks is not None:
            self._networks.close()

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
        warm_fds = [self._warm.fd] if self._warm is not None else []
        readable = select.select([self._wake_fd, *warm_fds], [], [], timeout_s)[0]
        if self._warm is not None and self._warm.fd in readable:
            self._take_forked(self._warm)
        if self._wake_fd not in readable:
            return
        numbers = os.read(self._wake_fd, 4096)
        self._signals += [number for number in numbers if number in self._stop_signals]
        self._patient = self._patient and sum(number not in _WARNINGS for number in self._signals) < 2
        if signal.SIGCHLD in numbers:
            for name, exit_code in self._children.reap():
                self._ended(name, exit_code)
            if self._dead_nodes and not self._children.kill_orphans():
                self._remove_vaults(self._dead_nodes)
                self._dead_nodes.clear()

    def _ended(self, name: str, exit_code: int) -> None:
        if name != _SUPERVISOR:
            self._dead_nodes.append(name)
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

    def _agents_left(self) -> bool:
        return self._warm is not None or any(name != _SUPERVISOR for name in self._children.started.values())

    def _remove_vaults(self, node_ids: list[str]) -> None:
        for node_id in node_ids:
            folder = vault_folder(self._config.job_id, node_id)
            if folder.exists():
                shutil.rmtree(folder)

    def _report(self) -> None:
        for event in self._progress.new_events():
            if event.get("event") == "injection":
                self._strike(str(event.get("kind")), f"node{event.get('target')}")
            if line := describe(event):
                self._say(line)
        for node_id in [each for each in self._to_boot if each not in self._dead_nodes and self._children.pid(each) is None]:
            self._to_boot.discard(node_id)  # nothing is left of its life before
            self._start_node(node_id)

    def _start_node(self, node_id: str) -> None:
        own = ["--job-dir", str(self._folder), "--with-parent", "--node-id", node_id, "--hint", node_id.removeprefix("node")]
        own += self._for_agents
        networks = self._networks
        if networks is not None:
            own += ["--host", networks.address(node_id)]
        command = [*module_command("deadpool.agent.main"), *own]
        if self._warm is not None:
            self._warm.start(node_id, command, None if networks is None else networks.fd(node_id))
        elif networks is None:
            self._children.start(node_id, command)
        else:
            self._children.start(node_id, command, partial(networks.enter, node_id))

    def _take_forked(self, warm: WarmNodes) -> None:
        """Agents that were forked are children like others; those that could not be are started in the ordinary way."""
        pids, failed = warm.started()
        for node_id, pid in pids.items():
            self._children.adopt(node_id, pid)
        if not warm.waiting:
            warm.close()
            self._warm, self._children.expecting = None, False
        for node_id in failed:
            self._start_node(node_id)

    def _strike(self, kind: str, node_id: str) -> None:
        """Carries out what only the machine under the nodes can do to them."""
        if kind == "freeze-node":  # its agent has done that
            self._frozen.add(node_id)
        elif kind == "thaw-node":
            self._frozen.discard(node_id)
            self._children.thaw(node_id)
        elif kind == "boot-node":
            self._to_boot.add(node_id)
        elif kind == "partition-node" and self._networks is not None:
            self._networks.cut(node_id)
        elif kind == "heal-node" and self._networks is not None:
            self._networks.heal(node_id)

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Inside, signals wake `_wait` up and do nothing else. One that was ignored (nohup) stays ignored."""
        self._wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        noted = [number for number in self._stop_signals if signal.getsignal(number) != signal.SIG_IGN] + [signal.SIGCHLD]
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


def _how(exit_code: int) -> str:
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
