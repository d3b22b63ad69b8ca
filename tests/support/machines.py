"""Machines for tests: network namespaces with a cable each to a bridge, in which the launcher is started as on any machine."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launching import tagged_pids, until

from deadpool.cli.nodes.netns import Networks, open_networks

_END_S = 20.0


@dataclass(frozen=True, slots=True)
class Started:
    """A launcher on one machine. Its output goes to files."""

    process: subprocess.Popen[bytes]
    out_path: Path
    err_path: Path

    @property
    def out(self) -> str:
        return self.out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_path.read_text(errors="replace")

    def wait(self, timeout_s: float = 150.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running after {timeout_s} s\n--- out\n{self.out}\n--- err\n{self.err}") from error


class Machines:
    """`folder`: what all machines share. Each has a runtime folder and a network of its own, and the same secret."""

    def __init__(self, networks: Networks, names: tuple[str, ...], folder: Path, runtime: Path) -> None:
        self.networks, self.folder, self._runtime = networks, folder, runtime
        self.names = names
        self.started: list[Started] = []

    def address(self, name: str) -> str:
        return self.networks.address(name)

    def environment(self, name: str) -> dict[str, str]:
        runtime = self._runtime / name
        runtime.mkdir(exist_ok=True)
        return {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "DEADPOOL_TOKEN": "a secret of this test"}

    def launch(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Started:
        return self.run(name, [sys.executable, "-m", "deadpool.cli.launch", *arguments], environment)

    def run(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> Started:
        paths = [self.folder / f"{name}-{len(self.started)}.{kind}" for kind in ("out", "err")]
        with paths[0].open("wb") as out, paths[1].open("wb") as err:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=self.folder,
                env={**self.environment(name), **(environment or {})},
                preexec_fn=partial(self.networks.enter, name) if name in self.names else None,
            )  # fmt: skip
        self.started.append(Started(process, *paths))
        return self.started[-1]

    def kill(self, name: str) -> None:
        """Ends all that runs on that machine, immediately; what it had in memory, all machines' here, goes with it."""
        tag = f"XDG_RUNTIME_DIR={self._runtime / name}"
        for pid in tagged_pids(tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not tagged_pids(tag), _END_S, f"nothing runs on {name}")
        for each in self.started:
            if each.out_path.name.startswith(f"{name}-"):
                for vault in Path("/dev/shm").glob(f"deadpool-*-{each.process.pid}-*"):  # a node's name has its launcher's pid
                    shutil.rmtree(vault)

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            living = [each.process for each in self.started if each.process.poll() is None]
            for process in living:
                process.send_signal(number)
            for process in living:
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    continue


@contextmanager
def machines(folder: Path, runtime: Path, *names: str) -> Iterator[Machines]:
    networks = open_networks(names)
    found = Machines(networks, names, folder, runtime)
    try:
        yield found
    finally:
        found.end()
        networks.close()


def wait_for_text(path: Path, text: str, count: int = 1, timeout_s: float = 60.0) -> None:
    until(lambda: path.exists() and path.read_text().count(text) >= count, timeout_s, f"{text!r} in {path.name}")
