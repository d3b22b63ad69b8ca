"""The node's checkpoint writer: a process of low priority that turns pinned slots into parts of persistent checkpoints.

It is forked from the warm process, as ranks are: the last checkpoint of a job that Slurm soon kills must not wait for imports.

A rank that wants S_k kept links its sealed slot to `checkpoint-<rank>-<generation>-<step>` in the vault: as long as the link is
there, the slot is not overwritten (vault.py). The link is removed once the part is on disk, or could not be written. A line from
the agent asks for the newest states of all slots as well, once the ranks have ended; the connection's end, without a line, is the
agent's end. Each line that goes back is one CheckpointWritten as JSON.
"""

import argparse
import json
import os
import select
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from deadpool.host.errors import SnapshotError
from deadpool.proto.checkpoint import complete_checkpoints
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.layout import PIN, SlotFile
from deadpool.proto.vault.slots import StateId

_LOOK_S = 0.2
_NICE = 19
_LINE_BYTES = 64


def write_checkpoints(agent: socket.socket, options: Sequence[str]) -> None:
    """Returns when the agent wants no more of them."""
    parser = argparse.ArgumentParser(prog="checkpoint-writer")
    parser.add_argument("--vault", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--keep", type=int, required=True)
    arguments = parser.parse_args(options)
    writer: CheckpointWriter | None = None
    asked = False
    while not asked:
        asked = bool(select.select([agent], [], [], _LOOK_S)[0])
        if writer is None and any(arguments.vault.glob(f"{SlotKind.SNAPSHOT}-*")):
            writer = CheckpointWriter(arguments, agent)
            os.nice(_NICE)  # not before its imports are done, if there are any: the last checkpoint would wait for them
        if writer is not None and not asked:
            writer.write_pinned()
    if agent.recv(_LINE_BYTES) and writer is not None:
        writer.write_pinned()
        writer.write_newest()


class CheckpointWriter:
    """What needs torch, which not every warm process has: made when the ranks' slots are, not at the last moment."""

    def __init__(self, arguments: argparse.Namespace, agent: socket.socket) -> None:
        from deadpool.trainer_hooks.checkpoints.format import CheckpointRun, clear_partials

        self._vault: Path = arguments.vault
        self._agent = agent
        self._run = CheckpointRun(
            folder=arguments.folder,
            name=arguments.run,
            job_id=arguments.job_id,
            world_size=arguments.world_size,
            keep=arguments.keep,
        )
        clear_partials(self._run)

    def write_pinned(self) -> None:
        for path in sorted(self._vault.glob(f"{PIN}-*")):
            self._write(path)
            path.unlink(missing_ok=True)

    def write_newest(self) -> None:
        """Writes all sealed states that are not older than the newest checkpoint: the newest that all ranks have is completed."""
        steps: list[tuple[int, Path]] = []
        for path in self._vault.glob(f"{SlotKind.SNAPSHOT}-*"):
            header = SlotFile(path).header()
            if header is not None and header.step > 0:
                steps.append((header.step, path))
        for step, path in sorted(steps, key=lambda one: -one[0]):
            if step > self._newest():
                self._write(path)

    def _newest(self) -> int:
        """Returns the step of the job's newest complete checkpoint, 0 when it has none."""
        own = (one.step for one in complete_checkpoints(self._run.folder) if one.job_id == self._run.job_id)
        return max(own, default=0)

    def _write(self, path: Path) -> None:
        from deadpool.trainer_hooks.checkpoints.format import complete, write_part

        began, state = time.monotonic(), StateId(generation=0, step=-1)
        try:
            slot = SlotFile(path)
            header = slot.header()
            if header is not None:
                state = StateId(generation=header.generation, step=header.step)
            write_part(self._run, slot)
            done = complete(self._run, state)
        except (OSError, SnapshotError, RuntimeError) as error:
            shutil.rmtree(self._run.partial(state), ignore_errors=True)
            if not 0 < state.step <= self._newest():  # else it is not needed any more, and may have been removed under our hands
                self._say(step=state.step, error=str(error).splitlines()[0])
            return
        if done is not None:
            self._say(step=state.step, path=str(done), seconds=time.monotonic() - began)

    def _say(self, **fields: str | int | float) -> None:
        self._agent.sendall(json.dumps(fields).encode() + b"\n")
