"""The vault of this process' own node, read where it lies: no byte of a slot goes over a connection.

A slot that a writer overwrites meanwhile gives bytes with other checksums, as over a connection.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import xxhash

from deadpool.host.errors import SnapshotError
from deadpool.proto.messages import Endpoint, SlotKind
from deadpool.proto.vault.layout import SLOT_NAMES, SNAPSHOT_NAMES, Header, SlotFile, Tables, slot_path
from deadpool.trainer_hooks.protection.replicate import VaultClient

STEP_BYTES = 512 << 10  # copied and then read again: both fit into a core's second cache


class NearVault:
    """Reads as VaultClient does, with the same errors. `agent`: the way to whoever holds it, and alone discards a slot."""

    def __init__(self, vault_dir: Path, agent: VaultClient) -> None:
        self._vault_dir, self._agent = vault_dir, agent
        self._slots: dict[Path, SlotFile] = {}

    @property
    def endpoint(self) -> Endpoint:
        return self._agent.endpoint

    def head(self, kind: SlotKind, rank: int, generation: int, step: int) -> tuple[Header, Tables]:
        """Returns header and tables of a sealed slot, their checksums verified."""
        slot, header = self._find(kind, rank, generation, step)
        return header, slot.tables(header)

    def data(self, kind: SlotKind, rank: int, generation: int, step: int, parts: Sequence[tuple[int, memoryview]]) -> list[int]:
        """Fills each part's memory from its offset in the slot's data; returns the checksum of each, as it is in that memory."""
        slot, header = self._find(kind, rank, generation, step)
        try:
            with slot.path.open("rb", buffering=0) as file:  # to map it would take longer than to read it
                return [_read(file.fileno(), header.data_offset + offset, target) for offset, target in parts]
        except OSError as error:
            raise SnapshotError(f"{slot.path.name} cannot be read: {error}") from error

    def discard(self, kind: SlotKind, rank: int, generation: int, step: int) -> None:
        self._agent.discard(kind, rank, generation, step)

    def close(self) -> None:
        self._slots.clear()
        self._agent.close()

    def _find(self, kind: SlotKind, rank: int, generation: int, step: int) -> tuple[SlotFile, Header]:
        for name in SNAPSHOT_NAMES if kind is SlotKind.SNAPSHOT else SLOT_NAMES:
            path = slot_path(self._vault_dir, kind, rank, name)
            with contextlib.suppress(OSError, ValueError):  # it is not there, or just being made
                slot = self._slots.get(path)
                if slot is None or not slot.is_current():
                    slot = self._slots[path] = SlotFile(path)
                header = slot.header()
                if header is not None and (header.generation, header.step) == (generation, step):
                    return slot, header
        raise SnapshotError(f"no {kind} of rank {rank}, generation {generation}, step {step} in this node's vault")


def _read(file: int, offset: int, target: memoryview) -> int:
    """Fills the target from there on, and returns the checksum of what it holds then. OSError."""
    total = xxhash.xxh3_64()
    for begin in range(0, len(target), STEP_BYTES):
        step = target[begin : begin + STEP_BYTES]
        filled = 0
        while filled < len(step):
            got = os.preadv(file, [step[filled:]], offset + begin + filled)
            if got == 0:
                raise OSError(f"it ends at {offset + begin + filled}")
            filled += got
        total.update(step)
    return total.intdigest()
