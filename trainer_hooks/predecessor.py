"""What a joiner learns of its predecessor before its script builds anything.

The small messages that it saw, how its DDPs sum, and how large its state is.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.host.errors import DeadpoolError, SnapshotError
from deadpool.proto.messages import Placement, SlotKind
from deadpool.proto.step import NO_STEP
from deadpool.proto.vault.layout import SNAPSHOT_NAMES, SlotFile, Tables, slot_path
from deadpool.trainer_hooks.ddp_reducers import DDP
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.state.metadata import unpack_meta
from deadpool.trainer_hooks.state.storable import decode

log = logging.getLogger(__name__)
_ATTEMPTS = 5  # while the predecessor lives its replica is written again and again; one of the two slots is whole at any moment
MESSAGES = "deadpool.messages"  # under which they are among the extras of the state
_EXTRAS = (MESSAGES, DDP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """`extras`: those named above. `tables`: of one of its snapshots or replicas, None where there is none."""

    extras: dict[str, Any] = field(default_factory=dict)
    tables: Tables | None = None


def predecessor(vault_dir: Path, placement: Placement, token: str) -> Predecessor:
    """Returns what any of the snapshots or replicas of the rank's predecessor says."""
    for tables in _tables(vault_dir, placement, token):
        try:
            extras = unpack_meta(tables.meta)["extra"]
        except Exception as error:  # whatever it is, the restore meets it as well, and says so
            log.info("metadata of rank %d: %s", placement.rank, error)
            continue
        return Predecessor(extras={name: decode(extras[name]) for name in _EXTRAS if name in extras}, tables=tables)
    return Predecessor()


def _tables(vault_dir: Path, placement: Placement, token: str) -> Iterator[Tables]:
    for name in SNAPSHOT_NAMES:
        path = slot_path(vault_dir, SlotKind.SNAPSHOT, placement.rank, name)
        if path.exists():
            slot = SlotFile(path)
            header = slot.header()
            try:
                if header is not None:
                    yield slot.tables(header)
            except SnapshotError as error:
                log.info("%s", error)
            finally:
                slot.close()
    for endpoint in placement.holders:
        client = VaultClient(endpoint, token)
        try:
            for _ in range(_ATTEMPTS):
                try:
                    yield client.head(SlotKind.REPLICA, placement.rank, 0, NO_STEP)[1]
                    break
                except SnapshotError as error:
                    log.info("%s", error)
        except DeadpoolError as error:
            log.info("%s", error)
        finally:
            client.close()
