"""The vaults from which a process restores: its own node's, and those of other nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deadpool.proto.messages import Endpoint, SlotKind
from deadpool.proto.vault.layout import Header, Tables
from deadpool.trainer_hooks.protection.near_vault import NearVault
from deadpool.trainer_hooks.protection.replicate import VaultClient


class VaultReader(Protocol):
    """Errors are UnavailableError (out of reach) or SnapshotError (there is no such slot, or it is torn)."""

    @property
    def endpoint(self) -> Endpoint: ...

    def head(self, kind: SlotKind, rank: int, generation: int, step: int) -> tuple[Header, Tables]:
        """Returns header and tables of a sealed slot, their checksums verified."""

    def data(self, kind: SlotKind, rank: int, generation: int, step: int, parts: Sequence[tuple[int, memoryview]]) -> list[int]:
        """Fills each part's memory from its offset in the slot's data; returns the checksum of each, as it is in that memory."""

    def discard(self, kind: SlotKind, rank: int, generation: int, step: int) -> None:
        """Has the vault look at a slot that has given other bytes than it should; it is made unusable if it is bad there."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Vaults:
    """`connections`: that fetch a large state from one vault (0: auto). `node_id`, `folder`: of the own node's vault."""

    token: str
    connections: int = 1
    node_id: str = ""
    folder: Path = Path()

    def reader(self, endpoint: Endpoint) -> VaultReader:
        client = VaultClient(endpoint, self.token, self.connections)
        return NearVault(self.folder, client) if endpoint.node_id == self.node_id else client
