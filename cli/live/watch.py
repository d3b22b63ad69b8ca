"""`deadpool status --watch`: the frame again and again, with keys, until the job's end; what stays is how it ended."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from deadpool.cli import client
from deadpool.cli.launcher.job_dirs import is_running
from deadpool.cli.live.dialogue import Dialogue, Request, WantedDrain, WantedInjection, pressed
from deadpool.cli.live.frame import frame, one_line
from deadpool.cli.live.marks import glyphs_for
from deadpool.cli.live.terminal import Keyboard, keyboard
from deadpool.host.errors import ConfigError, UnavailableError
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus

_REFRESH_S = 0.5
_PAUSES = 10  # times what an answer took, so that looking at a large job costs its supervisor little
_AGAIN_S = 0.2  # between two tries to reach a supervisor that does not answer
_READY_S = 1.0
_LOG_LINES = 8


class Output(Protocol):
    """What a rank prints."""

    def new(self) -> bytes:
        """Returns what has come since the last call."""


class WatchedJob:
    """A view of the job in that folder, on a terminal."""

    def __init__(self, folder: Path, output: Callable[[int], Output], console: Console, keys: Keyboard, live: Live) -> None:
        self._folder, self._output_of, self._console, self._keys, self._live = folder, output, console, keys, live
        self._glyphs = glyphs_for(console.encoding)
        self._dialogue = Dialogue()
        self._output: tuple[int, Output] | None = None
        self._printed: deque[str] = deque(maxlen=_LOG_LINES)
        self._status: JobStatus | None = None

    def run(self, extra: Callable[[client.Client, JobStatus], RenderableType] | None) -> bool:
        """Returns True when the job has ended, False when the person has quit. `extra`: what is shown below the status."""
        while not self._dialogue.over:
            try:
                with client.connected(self._folder, to_the_end=True, ready_s=_READY_S) as job:
                    self._look(job, extra)
            except UnavailableError as error:
                self._dialogue = replace(self._dialogue, message=str(error))
            if not is_running(self._folder):
                return True
            if not self._dialogue.over:
                self._press(None, self._keys.keys(_AGAIN_S))
        return False

    def _look(self, job: client.Client, extra: Callable[[client.Client, JobStatus], RenderableType] | None) -> None:
        while not self._dialogue.over:
            asked_s = time.monotonic()
            self._status = job.status()
            pause_s = max(_REFRESH_S, _PAUSES * (time.monotonic() - asked_s))
            self._draw(extra(job, self._status) if extra is not None else None)
            until_s = time.monotonic() + pause_s
            while not self._dialogue.over and (left_s := until_s - time.monotonic()) > 0:
                if keys := self._keys.keys(left_s):
                    self._press(job, keys)
                    self._draw(None)

    def _draw(self, extra: RenderableType | None) -> None:
        if self._status is None:
            return
        logs = self._logs()
        width = self._console.width
        asked = [Text(line, style="reverse") for line in self._dialogue.lines(width)]
        height = self._console.height - len(logs) - len(asked) - 2
        lines = [*frame(self._status, width=width, height=height, glyphs=self._glyphs), Text(""), *logs, *asked]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        self._live.update(Group(*lines, *([extra] if extra is not None else [])), refresh=True)

    def _logs(self) -> list[Text]:
        rank = self._dialogue.logs_of
        if rank is None:
            self._output = None
            return []
        if self._output is None or self._output[0] != rank:
            self._output = rank, self._output_of(rank)
            self._printed.clear()
        self._printed += self._output[1].new().decode(errors="replace").splitlines()
        said = list(self._printed) or [f"rank {rank} has printed nothing so far"]
        return [Text(f"rank {rank}", style="bold"), *map(Text, said), Text("")]

    def _press(self, job: client.Client | None, keys: list[str]) -> None:
        for key in keys:
            self._dialogue, request = pressed(self._dialogue, key)
            if request is not None:
                message = "the supervisor does not answer" if job is None else _carry_out(job, request)
                self._dialogue = replace(self._dialogue, message=message)


def _carry_out(job: client.Client, request: Request) -> str:
    """Returns what became of it, in a line."""
    try:
        match request:
            case WantedDrain(node=node):
                job.drain(node, "asked for in deadpool status")
                return f"{node} is being drained"
            case WantedInjection(kind=kind, target=target):
                job.inject(kind, target, NO_STEP)
                return f"injected: {kind} {target}"
    except ConfigError as error:
        return str(error)


def watch(
    folder: Path,
    output: Callable[[int], Output],
    console: Console,
    ended: Callable[[], RenderableType],
    extra: Callable[[client.Client, JobStatus], RenderableType] | None = None,
) -> None:
    """Shows the job until it ends, or `q`. `output(rank)`: what it prints. `ended()`: what stays on the screen then."""
    if not console.is_terminal or console.is_dumb_terminal:
        _line_by_line(folder, console)
        console.print(ended())
        return
    with keyboard() as keys, Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        if WatchedJob(folder, output, console, keys, live).run(extra):
            live.update(ended(), refresh=True)


def _line_by_line(folder: Path, console: Console) -> None:
    """Where nothing can be painted over: a line whenever it is another one."""
    last = ""
    with client.connected(folder, to_the_end=True) as job:
        while True:
            line = one_line(job.status())
            if line != last:
                console.print(line, soft_wrap=True, highlight=False)
            last = line
            time.sleep(2 * _REFRESH_S)
