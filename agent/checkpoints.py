"""The node's checkpoint writer, seen from the agent: a process of low priority, there for jobs with --checkpoint-dir."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from deadpool.agent.logs import Logs, RankLog
from deadpool.agent.shortage import AGAIN_S, out_of_files
from deadpool.agent.views import View
from deadpool.agent.warm import WarmProcess
from deadpool.proto.checkpoint import Complete, complete_checkpoints, read_marker
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import CheckpointWritten
from deadpool.proto.streams import STDERR
from deadpool.proto.vault_layout import checksum
from deadpool.proto.warm_wire import ForkKind

REQUEST = -2  # the warm process's number for it; see store.py
_VIEW = View(name="checkpoints.log", prefix=b"[checkpoints] ", console=frozenset({STDERR}))
_READ_BYTES = 1 << 16
_STARTS_MAX = 3


class Checkpoints:
    """`on_written` hears of each checkpoint that this node has completed, and of each part that could not be written."""

    def __init__(
        self,
        config: JobConfig,
        warm: WarmProcess,
        logs: Logs,
        *,
        vault_dir: Path,
        token: str,
        on_written: Callable[[CheckpointWritten], None],
    ) -> None:
        self._config, self._warm, self._logs, self._on_written = config, warm, logs, on_written
        options = {
            "vault": str(vault_dir),
            "folder": config.checkpoint_dir,
            "run": f"{config.job_id}-{checksum(token.encode()):016x}",
            "job-id": config.job_id,
            "world-size": str(config.world_size),
            "keep": str(config.keep),
        }
        self._options = tuple(part for name, value in options.items() for part in (f"--{name}", value))
        self._control: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._log: RankLog | None = None
        self._rest = b""
        self._starts = 0
        self._again: asyncio.TimerHandle | None = None  # there were no descriptors to start it with
        self._asked = False
        self._over = asyncio.Event()
        self.pid = 0  # 0 while there is none

    def start(self) -> None:
        config = self._config
        for known in [read_marker(Path(config.resume))] if config.resume not in ("auto", "never") else _newest(config):
            if known is not None:
                self._on_written(CheckpointWritten(step=known.step, path=str(known.path)))
        if config.checkpoint_dir:
            self._start()

    def _start(self) -> None:
        self._again = None
        try:
            self._log, self._control, self._theirs = self._logs.open_with_control(_VIEW)
        except OSError as error:
            if not out_of_files(error):
                raise
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._start)
            return
        self._starts += 1
        self._rest = b""
        fds = (self._log.stdout_fd, self._log.stderr_fd, self._theirs.fileno())
        self._warm.fork(REQUEST, ForkKind.CHECKPOINTS, {"OMP_NUM_THREADS": "1"}, fds, self._options)

    def forked(self, pid: int) -> None:
        """The warm process says that it exists."""
        assert self._control is not None
        assert self._theirs is not None
        assert self._log is not None
        self.pid = pid
        self._theirs.close()
        self._log.handed_over()
        asyncio.get_running_loop().add_reader(self._control, self._readable)

    async def write_last(self, timeout_s: float) -> None:
        """The ranks have ended: writes the newest state that all have, and returns when that is done, or has failed."""
        if self._control is None or not self.pid:  # before there was one, there were no ranks
            return
        self._asked = True
        try:
            self._control.sendall(b"end\n")
            await asyncio.wait_for(self._over.wait(), timeout_s)
        except ConnectionError:
            self._on_written(CheckpointWritten(step=-1, error="no last checkpoint: its writer is gone"))
        except TimeoutError:
            self._on_written(CheckpointWritten(step=-1, error=f"the last checkpoint was not written within {timeout_s:g} s"))

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._control is None or self._log is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._log.close()
        if self.pid:
            self.kill()
            os.waitpid(self.pid, 0)
        self._control, self._log, self.pid = None, None, 0

    def _readable(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except ConnectionError:
            data = b""
        if not data:
            self._ended()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_written(CheckpointWritten(**json.loads(line)))

    def _ended(self) -> None:
        """It has done what it was asked for, or it died: then what was pinned is written by the next one."""
        assert self._control is not None
        if self._asked:
            asyncio.get_running_loop().remove_reader(self._control)
            self._over.set()
            return
        self.close()
        again = self._starts < _STARTS_MAX
        self._on_written(CheckpointWritten(step=-1, error=f"its writer died{'; starting it again' if again else ''}"))
        if again:
            self._start()


def _newest(config: JobConfig) -> list[Complete]:
    """Returns the checkpoint from which the job starts, if there is one."""
    return complete_checkpoints(Path(config.checkpoint_dir))[:1] if config.checkpoint_dir and config.resume == "auto" else []
