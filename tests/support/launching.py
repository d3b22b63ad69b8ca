"""Real jobs for tests: starts deadpool-launch as a person would, in folders of its own, and waits with deadlines."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from warm_start import Forked, warm_start

from deadpool.supervisor.report.events import COMMON, misfit

T = TypeVar("T")
_DRAIN_S = 20.0
_PATIENCE_S = 160.0  # with a job on a machine that does much else; pytest gives a whole test 180 s or more


def until(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """Returns the first true value of the condition, looked at often; AssertionError with `what` when it never comes."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return value


@dataclass(frozen=True, slots=True)
class Outcome:
    exit_code: int
    out: str
    err: str
    duration_s: float


LAUNCH = ("deadpool.cli.launch",)
DRILL = ("deadpool.cli.main", "drill")


class Job:
    """One deadpool-launch process. Its output goes to files, so that nothing ever blocks on a full pipe.

    Unless `cold`, it finds a warm process made (warm_start.py), and does not spend its first seconds importing torch.
    """

    def __init__(
        self,
        folder: Path,
        runtime: Path,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        cold: bool,
        shm_bytes: int = 0,
        program: Sequence[str] = LAUNCH,
    ) -> None:
        self.job_id = f"t{os.getpid()}-{folder.name}"
        self.folder = folder
        self.job_folder = runtime / "deadpool" / self.job_id
        self.log_dir = folder / "logs"
        self.runtime = runtime
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), **environment}
        ours = ("--job-id", self.job_id, "--log-dir", str(self.log_dir))
        self._began_s = time.monotonic()
        command = [sys.executable, "-m", *program, *ours, *arguments]
        if shm_bytes:
            command = [*own_shm(shm_bytes), *command]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process: Forked | subprocess.Popen[bytes]
            if cold:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.environment, cwd=folder
                )
            else:
                self.process = warm_start(command, self.environment, folder, (out.fileno(), err.fileno()))

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def wait(self, timeout_s: float = _PATIENCE_S) -> Outcome:
        """Returns how the job ended; on a timeout the job is stopped and its output is in the error."""
        try:
            exit_code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.end()
            raise AssertionError(f"still running after {timeout_s} s\n--- out\n{self.out}\n--- err\n{self.err}") from error
        outcome = Outcome(exit_code, self.out, self.err, time.monotonic() - self._began_s)
        print(f"{self.job_id}: exit code {outcome.exit_code} after {outcome.duration_s:.2f} s")
        return outcome

    def end(self) -> None:
        """Stops the job if it still runs, politely first."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with_timeout(lambda: self.process.wait(_DRAIN_S))

    def events(self) -> list[dict[str, Any]]:
        """Returns the complete lines of events.jsonl so far, each of which is as docs/events.md says."""
        path = self.log_dir / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        events = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        for event in events:
            wrong = misfit(event["event"], {name: value for name, value in event.items() if name not in COMMON})
            assert not wrong, wrong
            assert event.keys() >= COMMON.keys(), event
        return events

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `deadpool ARGUMENTS` against this job's runtime folder."""
        return subprocess.run(
            [sys.executable, "-m", "deadpool.cli.main", *arguments],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip

    def ask_on(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts `deadpool ARGUMENTS`, which goes on as long as the job does; its output is of no interest."""
        return subprocess.Popen(
            [sys.executable, "-m", "deadpool.cli.main", *arguments],
            env=self.environment, cwd=self.folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        answer = self.ask("status", "--json")
        assert answer.returncode == 0, answer.stderr
        status = json.loads(answer.stdout)
        assert isinstance(status, dict)
        return status

    def pids(self) -> list[int]:
        """Returns every process of the job, launcher included."""
        return tagged_pids(f"XDG_RUNTIME_DIR={self.runtime}", self.folder)


def own_shm(size_bytes: int) -> list[str]:
    """Returns the start of a command that runs the rest with a /dev/shm of its own of that size."""
    mount = f"mount -t tmpfs -o size={size_bytes} deadpool-test /dev/shm"
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mount} && exec "$@"', "sh"]


class Launcher:
    """Starts jobs, each in a folder of its own under `folder`, with a runtime folder whose path is short enough for sockets."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.runtime = runtime
        self.jobs: list[Job] = []

    def start(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        cold: bool = False,
        shm_bytes: int = 0,
        program: Sequence[str] = LAUNCH,
    ) -> Job:
        """`shm_bytes`: the job has a /dev/shm of its own (needs root), which it may fill. It starts cold then.

        `program`: the module that launches it, and the words before its options.
        """
        folder = self.folder / f"job{len(self.jobs)}"
        folder.mkdir()
        cold = cold or shm_bytes > 0
        self.jobs.append(Job(folder, self.runtime, arguments, environment or {}, cold=cold, shm_bytes=shm_bytes, program=program))
        return self.jobs[-1]

    def run(
        self, *arguments: str, timeout_s: float = _PATIENCE_S, environment: Mapping[str, str] | None = None, cold: bool = False
    ) -> Outcome:
        return self.start(*arguments, environment=environment, cold=cold).wait(timeout_s)


@contextmanager
def launching(folder: Path) -> Iterator[Launcher]:
    runtime = Path(tempfile.mkdtemp(prefix="dp-", dir="/tmp"))
    launcher = Launcher(folder, runtime)
    try:
        yield launcher
    finally:
        for job in launcher.jobs:
            job.end()
        shutil.rmtree(runtime)


def with_timeout(wait: Callable[[], object]) -> bool:
    """Returns whether the wait ended in time."""
    try:
        wait()
    except subprocess.TimeoutExpired:
        return False
    return True


def tagged_pids(tag: str, folder: Path | None = None) -> list[int]:
    """Returns the living processes whose environment, at their start, held `tag` (NAME=value), or that stand in `folder`.

    A process that was forked from a warm one has the environment of that one's start there, whatever it has now.
    """
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                environment, stands_in = (each / "environ").read_bytes(), Path(os.readlink(each / "cwd"))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended meanwhile, or is another user's
            if tag.encode() in environment.split(b"\0") or (folder is not None and stands_in.is_relative_to(folder)):
                found.append(int(each.name))
    return found
