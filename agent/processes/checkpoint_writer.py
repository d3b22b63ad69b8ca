"""The node's checkpoint writer, seen from the agent: a process of low priority, there for jobs with --checkpoint-dir."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from deadpool.agent.logs.routing import LogRoutes
from deadpool.agent.logs.writer import Logs
from deadpool.agent.processes.side_process import SideProcess
from deadpool.agent.processes.warm import WarmProcess
from deadpool.proto.checkpoint import Complete, complete_checkpoints, read_marker
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import CheckpointWritten
from deadpool.proto.streams import STDERR
from deadpool.proto.vault.layout import checksum
from deadpool.proto.warm_wire import ForkKind

_VIEW = LogRoutes(name="checkpoints.log", prefix=b"[checkpoints] ", console=frozenset({STDERR}))
_STARTS_MAX = 3


class CheckpointWriterProcess:
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
        self._config, self._on_written = config, on_written
        options = {
            "vault": str(vault_dir),
            "folder": config.checkpoint_dir,
            "run": f"{config.job_id}-{checksum(token.encode()):016x}",
            "job-id": config.job_id,
            "world-size": str(config.world_size),
            "keep": str(config.keep),
        }
        self._rest = b""
        self._starts = 0
        self._asked = False
        self._over = asyncio.Event()
        self.side = SideProcess(
            warm, logs, _VIEW, ForkKind.CHECKPOINTS,
            environment={"OMP_NUM_THREADS": "1"},
            arguments=tuple(part for name, value in options.items() for part in (f"--{name}", value)),
            on_ready=self._ready, on_data=self._heard, on_ended=self._ended,
        )  # fmt: skip

    def start(self) -> None:
        config = self._config
        for known in [read_marker(Path(config.resume))] if config.resume not in ("auto", "never") else _newest(config):
            if known is not None:
                self._on_written(CheckpointWritten(step=known.step, path=str(known.path)))
        if config.checkpoint_dir:
            self.side.start()

    async def write_last(self, timeout_s: float) -> None:
        """The ranks have ended: writes the newest state that all have, and returns when that is done, or has failed."""
        if self.side.control is None or not self.side.pid:  # before there was one, there were no ranks
            return
        self._asked = True
        try:
            self.side.control.sendall(b"end\n")
            await asyncio.wait_for(self._over.wait(), timeout_s)
        except ConnectionError:
            self._on_written(CheckpointWritten(step=-1, error="no last checkpoint: its writer is gone"))
        except TimeoutError:
            self._on_written(CheckpointWritten(step=-1, error=f"the last checkpoint was not written within {timeout_s:g} s"))

    def _ready(self) -> None:
        self._starts += 1
        self._rest = b""

    def _heard(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_written(CheckpointWritten(**json.loads(line)))

    def _ended(self) -> None:
        """It has done what it was asked for, or it died: then what was pinned is written by the next one."""
        if self._asked:
            self._over.set()
            return
        self.side.close()
        again = self._starts < _STARTS_MAX
        self._on_written(CheckpointWritten(step=-1, error=f"its writer died{'; starting it again' if again else ''}"))
        if again:
            self.side.start()


def _newest(config: JobConfig) -> list[Complete]:
    """Returns the checkpoint from which the job starts, if there is one."""
    return complete_checkpoints(Path(config.checkpoint_dir))[:1] if config.checkpoint_dir and config.resume == "auto" else []
