"""The node's checkpoint writer, seen from the agent: a process of low priority, there for jobs with --checkpoint-dir."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from deadpool.proto.checkpoint import Complete, complete_checkpoints, read_marker
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import CheckpointWritten
from deadpool.proto.vault_layout import checksum

_MODULE = "deadpool.trainer_hooks.checkpoint_writer"
_READ_BYTES = 1 << 16


class Checkpoints:
    """`on_written` hears of each checkpoint that this node has completed, and of each part that could not be written."""

    def __init__(
        self,
        config: JobConfig,
        environment: Mapping[str, str],
        *,
        vault_dir: Path,
        token: str,
        on_written: Callable[[CheckpointWritten], None],
    ) -> None:
        self._config, self._environment, self._vault_dir, self._on_written = config, environment, vault_dir, on_written
        self._run = f"{config.job_id}-{checksum(token.encode()):016x}"
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._over = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        config = self._config
        for known in [read_marker(Path(config.resume))] if config.resume not in ("auto", "never") else _newest(config):
            if known is not None:
                self._on_written(CheckpointWritten(step=known.step, path=str(known.path)))
        if not config.checkpoint_dir:
            self._over.set()
            return
        arguments = {
            "vault": str(self._vault_dir),
            "folder": config.checkpoint_dir,
            "run": self._run,
            "job-id": config.job_id,
            "world-size": str(config.world_size),
            "keep": str(config.keep),
        }
        options = [part for name, value in arguments.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [config.python, "-m", _MODULE, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            env={**self._environment, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._readable)

    async def write_last(self, timeout_s: float) -> None:
        """The ranks have ended: writes the newest state that all have, and returns when that is done, or has failed."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(b"end\n")
            self._process.stdin.close()
            await asyncio.wait_for(self._over.wait(), timeout_s)
        except OSError as error:  # it is dead, and that was said
            self._on_written(CheckpointWritten(step=-1, error=f"the checkpoint writer is gone: {error}"))
        except TimeoutError:
            self._on_written(CheckpointWritten(step=-1, error=f"the last checkpoint was not written within {timeout_s:g} s"))

    def signal(self, signal_number: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal_number)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        asyncio.get_running_loop().remove_reader(process.stdout.fileno())
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _readable(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), _READ_BYTES)
        if not data:
            asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())
            self._over.set()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_written(CheckpointWritten(**json.loads(line)))


def _newest(config: JobConfig) -> list[Complete]:
    """Returns the checkpoint from which the job starts, if there is one."""
    return complete_checkpoints(Path(config.checkpoint_dir))[:1] if config.checkpoint_dir and config.resume == "auto" else []
