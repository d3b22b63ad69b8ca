"""Carries injected failures out that are the agent's to do: to itself, to its processes, to the vault.

What a real failure would do is done for real: signals, bits in memory, memory taken.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from deadpool.agent.events import InjectHere
from deadpool.agent.node_resources import NodeResources
from deadpool.host.disk import free_bytes
from deadpool.host.errors import SnapshotError
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.layout import SNAPSHOT_NAMES, SlotFile, slot_path

_BALLAST = "ballast"
_TRIES = 3


def inject(order: InjectHere, node: NodeResources) -> None:
    """Carries the injection out. kill-agent and freeze-node do not return."""
    folder = node.vault.folder
    match order.kind:
        case "kill-agent":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze-node":
            node.signal_all(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "freeze-rank" if order.process is not None:
            node.processes.kill(order.process, signal.SIGSTOP)
        case "thaw-rank" if order.process is not None:
            node.processes.kill(order.process, signal.SIGCONT)
        case "corrupt-snapshot":
            corrupt(folder, SlotKind.SNAPSHOT, order.target)
        case "corrupt-replica":
            corrupt(folder, SlotKind.REPLICA, order.target)
        case "fill-shm":
            fill(folder)
        case "free-shm":
            (folder / _BALLAST).unlink(missing_ok=True)
        case _:
            raise AssertionError(f"{order} is not the agent's")


def corrupt(folder: Path, kind: SlotKind, rank: int) -> int:
    """Flips a byte of every item of the rank's sealed slots, as bad memory might; returns how many slots there were."""
    count = 0
    for slot in _opened(folder, kind, rank):
        header = slot.header()
        if header is None:
            continue
        with contextlib.suppress(SnapshotError), slot.data(header) as data:
            for item in slot.tables(header).layout.items:
                if item.nbytes and item.offset < len(data):
                    data[item.offset] ^= 0xFF
            count += 1
    return count


def fill(folder: Path) -> None:
    """Takes what is left of the file system under the vault; what was reserved before stays usable."""
    with (folder / _BALLAST).open("ab") as file:
        for _ in range(_TRIES):
            size, free = os.fstat(file.fileno()).st_size, free_bytes(folder)
            with contextlib.suppress(OSError):  # somebody else was quicker, or gave something back
                os.posix_fallocate(file.fileno(), size, max(1, free))


def _opened(folder: Path, kind: SlotKind, rank: int) -> Iterator[SlotFile]:
    for name in SNAPSHOT_NAMES:
        path = slot_path(folder, kind, rank, name)
        if path.exists():
            slot = SlotFile(path)
            try:
                yield slot
            finally:
                slot.close()
