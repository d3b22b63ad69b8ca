"""The launcher's children: the supervisor, the agents, and whatever a dead agent has left behind.

The launcher is a subreaper. A live agent is one as well, so a child that the launcher has not started itself can only come from
an agent that died: it is killed. Each such death may hand over its own children, and is seen as a death itself, so that
nothing of a dead node survives.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from deadpool.host.lifetime import signal_at_parents_death

SUPERVISOR = "supervisor"  # its name among the children


def start(command: list[str], prepare: Callable[[], None] = lambda: None) -> subprocess.Popen[bytes]:
    """Starts the command in a session of its own: a Ctrl-C is the launcher's alone.

    `prepare` runs in the child, before the command.

    It gets SIGTERM when the launcher dies, from its first moment: our processes ask for that themselves as well, but a launcher
    may be killed before they have got so far.
    """
    launcher = os.getpid()

    def die_with_launcher() -> None:
        if not signal_at_parents_death(signal.SIGTERM, launcher):
            os._exit(1)
        prepare()

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_launcher)


def module_command(module: str) -> list[str]:
    """Returns the start of a command that runs the module in this interpreter.

    -P: a folder named torch or grpc where the user happens to stand is not imported in place of the real one.
    """
    return [sys.executable, "-P", "-m", module]


def children() -> set[int]:
    """Returns the pids of all children of this process, dead ones that were not reaped included."""
    return {child.pid for child in psutil.Process().children()}


class Children:
    """Started: pid -> name, until reaped. Children that were there before (left by an exec) are nobody's business.

    `expecting`: others are forking children for this process, whose pids it will be told (`adopt`): no child is an orphan.
    """

    def __init__(self) -> None:
        self.started: dict[int, str] = {}
        self.expecting = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._not_ours = children()

    def start(self, name: str, command: list[str], prepare: Callable[[], None] = lambda: None) -> None:
        process = start(command, prepare)
        self.started[process.pid] = name
        self._processes[process.pid] = process

    def adopt(self, name: str, pid: int) -> None:
        """Counts a child that was forked for this process as started by it."""
        self.started[pid] = name

    def tolerate(self, pid: int) -> None:
        """A child that nothing needs to be done about."""
        self._not_ours.add(pid)

    def pid(self, name: str) -> int | None:
        """Returns the pid of the child that was started under that name, None once it is reaped."""
        return next((pid for pid, each in self.started.items() if each == name), None)

    def reap(self) -> list[tuple[str, int]]:
        """Returns (name, exit code, or minus the signal that killed it) of every started child that has ended; kills orphans."""
        ended: list[tuple[str, int]] = []
        while (found := _wait_for_any()) is not None:
            pid, exit_code = found
            if pid in self.started:
                if (process := self._processes.pop(pid, None)) is not None:
                    process.returncode = exit_code  # reaped here: subprocess need not look for it
                ended.append((self.started.pop(pid), exit_code))
        self.kill_orphans()
        return ended

    def signal(self, name: str, signal_number: int) -> None:
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal_number)  # not reaped yet: the pid is still ours

    def thaw(self, name: str) -> None:
        """SIGCONT to the child and all below it."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGCONT)
            for process in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def kill_orphans(self) -> bool:
        """Kills what dead agents left; returns whether there was anything."""
        if self.expecting:
            return False
        orphans = self._orphans()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        return bool(orphans)

    def _orphans(self) -> set[int]:
        return children() - self._not_ours - self.started.keys()


def signal_hosted(job_folder: Path, number: int = signal.SIGTERM) -> bool:
    """The signal to the supervisor that a node of ours hosts; returns whether it lives. No child of ours: its pid is checked."""
    with contextlib.suppress(FileNotFoundError, psutil.Error):
        process = psutil.Process(json.loads((job_folder / "endpoint.json").read_text())["pid"])
        if str(job_folder) in process.cmdline() and os.getpid() in [parent.pid for parent in process.parents()]:
            process.send_signal(number)
            return True
    return False


def _wait_for_any() -> tuple[int, int] | None:
    """Returns (pid, exit code, or minus the signal that killed it) of a child that has ended; None when there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None
