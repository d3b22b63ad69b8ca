"""The slots of a process that takes over a rank, made and mapped by a thread before it needs them: while it builds and rehearses.

The tables of its predecessor say how large they must be. Nothing depends on this: what is not there when the first state is
protected is made then, or refused for want of room, as ever.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from deadpool.host.errors import DeadpoolError
from deadpool.host.prefault import prefault
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.layout import SNAPSHOT_NAMES, SlotFile, Tables, slot_path
from deadpool.trainer_hooks.protection.slots import capacity

log = logging.getLogger(__name__)
_NICE = 5  # of the thread: the others wait for what the script builds meanwhile


class ReadySlots:
    """Of one rank. `reserve(snapshot_bytes, replica_bytes)`: has the agent make them (session.reserve); called by the thread.

    Slots that the vault has already are only mapped: a rank that lives on this node may be writing to them.
    """

    def __init__(self, vault_dir: Path, rank: int, like: Tables, reserve: Callable[[int, int], None]) -> None:
        layout, meta_bytes = like.layout, len(like.meta)
        self._snapshot_bytes, _ = capacity(layout.data_bytes, len(layout.items), meta_bytes)
        self._replica_bytes, _ = capacity(layout.unique_bytes, len(layout.items), meta_bytes)
        self._paths = [slot_path(vault_dir, SlotKind.SNAPSHOT, rank, name) for name in SNAPSHOT_NAMES]
        self._reserve = reserve
        self._mapped: dict[Path, SlotFile] = {}
        self._thread = threading.Thread(target=self._make, name="deadpool-reserve", daemon=True)
        self._thread.start()

    def take(self) -> dict[Path, SlotFile]:
        """Returns those that are mapped to the last page, once the thread has ended."""
        self._thread.join()
        return self._mapped

    def _make(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            if not any(path.exists() for path in self._paths):
                self._reserve(self._snapshot_bytes, self._replica_bytes)
            for path in self._paths:
                if path.exists():
                    slot = SlotFile(path)
                    prefault(slot.map)
                    self._mapped[path] = slot
        except (DeadpoolError, OSError, ValueError) as error:  # no room, or a file that is just being made
            log.info("no slots beforehand: %s", error)
