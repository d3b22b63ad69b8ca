"""The session of a job of one rank, as its protection sees it."""

import threading
from pathlib import Path
from typing import NoReturn

from torch._C._distributed_c10d import HashStore, Store

from deadpool.host.errors import ConfigError
from deadpool.proto.config import Keeping
from deadpool.proto.messages import Placement, RankMessage, Role, SlotKind
from deadpool.proto.vault.layout import SLOT_NAMES, reserve, slot_path
from deadpool.trainer_hooks.protection.ports import ProtectionControl
from deadpool.trainer_hooks.protection.ready_slots import ReadySlots
from deadpool.trainer_hooks.protocol import Member


class OnlyRank:
    def __init__(self, folder: Path) -> None:
        self.token, self.vault_dir, self.node_id, self.keeping = "", folder, "node0", Keeping()
        self.changed = threading.Condition(threading.RLock())
        self.rank, self.cancelled = 0, threading.Event()
        self.playing: tuple[int, ...] = (0,)
        self.excluded: frozenset[int] = frozenset()
        self.drilled: set[int] = set()
        self.ready_slots: ReadySlots | None = None
        self.member = Member(rank=0, generation=1, joiner=False)
        placement = Placement(rank=0, node_id="node0", node_rank=0, local_rank=0, holders=())
        self.role = Role(
            rank=0, world_size=1, local_rank=0, generation=1, muted=False, hint_step=0, store_host="", store_port=0,
            environment={}, placement=placement,
        )  # fmt: skip
        self.sent: list[RankMessage] = []

    def attach(self, protection: ProtectionControl) -> None:
        pass

    def connect_store(self, host: str, port: int) -> Store:
        return HashStore()

    def reserve(self, snapshot_bytes: int, replica_bytes: int) -> None:
        for name in SLOT_NAMES:
            reserve(slot_path(self.vault_dir, SlotKind.SNAPSHOT, self.rank, name), snapshot_bytes)

    def refuse(self, reason: str) -> NoReturn:
        raise ConfigError(reason)

    def send(self, message: RankMessage) -> None:
        self.sent.append(message)

    def trouble(self, generation: int, error: Exception) -> None:
        raise error
