"""The node's checkpoint writer: a process of low priority that turns pinned slots into parts of persistent checkpoints.

A rank that wants S_k kept links its sealed slot to `checkpoint-<rank>-<generation>-<step>` in the vault: as long as the link is
there, the slot is not overwritten (vault.py). The link is removed once the part is on disk, or could not be written. A line on
stdin asks for the newest states of all slots as well, once the ranks have ended; its end, without a line, is the agent's end.
Each line on stdout is one CheckpointWritten as JSON.
"""

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from deadpool.proto.checkpoint import complete_checkpoints
from deadpool.proto.errors import SnapshotError
from deadpool.proto.messages import SlotKind
from deadpool.proto.slots import StateId
from deadpool.proto.vault_layout import PIN, SlotFile

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.2
_NICE = 19


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent says when it is over
    os.nice(_NICE)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vault", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--keep", type=int, required=True)
    arguments = parser.parse_args()
    while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        if any(arguments.vault.glob(f"{PIN}-*")):
            Writer(arguments).write_pinned()
    if sys.stdin.readline():
        writer = Writer(arguments)
        writer.write_pinned()
        writer.write_newest()


class Writer:
    """What needs torch, which is imported when there is something to write. `arguments`: see main."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from deadpool.trainer_hooks.checkpoint import Run, clear_partials

        self._vault: Path = arguments.vault
        self._run = Run(
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
            own = [one.step for one in complete_checkpoints(self._run.folder) if one.job_id == self._run.job_id]
            if step > max(own, default=0):
                self._write(path)

    def _write(self, path: Path) -> None:
        from deadpool.trainer_hooks.checkpoint import complete, write_part

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
            _say(step=state.step, error=str(error).splitlines()[0])
            return
        if done is not None:
            _say(step=state.step, path=str(done), seconds=time.monotonic() - began)


def _say(**fields: str | int | float) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
