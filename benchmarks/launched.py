"""One command under measurement, with all the processes that come of it."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_TAG = "DEADPOOL_BENCHMARK"
_POLITE_S = 15.0


class Launched:
    """A running command. Its processes are known by a variable in their environment, also those that left its session."""

    def __init__(self, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], name: str = "main") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._mark = f"{folder.name}-{name}-{os.getpid()}"
        self.output = folder / f"{name}.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [str(part) for part in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment, _TAG: self._mark}, start_new_session=True,
            )  # fmt: skip

    def alive(self) -> bool:
        return self.process.poll() is None

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if environment_of(process).get(_TAG) == self._mark]

    def worker(self, variable: str, value: str) -> psutil.Process | None:
        """Returns the training process whose environment says so: of several, the one whose parent does not."""
        found = {
            process.pid: process
            for process in self.processes()
            if (environment := environment_of(process)).get(variable) == value and "LOCAL_RANK" in environment
        }
        return next((process for process in found.values() if process.ppid() not in found), None)

    def end(self) -> None:
        """Ends the command and everything of it, politely first: it may have files to remove."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
            deadline_s = time.monotonic() + _POLITE_S
            while self.alive() and time.monotonic() < deadline_s:
                time.sleep(0.05)
        while left := self.processes():
            for process in left:
                if process.is_running():
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)
        self.process.wait()

    def tail(self) -> str:
        """Returns the last lines of the output, for what went wrong."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-15:])


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Returns the environment that the process was started with; nothing when it has ended or is another user's."""
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}
