"""The neighbours that hold this rank's replicas: sends each state's unique part to them, with patience for an agent's restart."""

import threading
import time
from collections.abc import Sequence

from deadpool.host.errors import SnapshotError, UnavailableError
from deadpool.proto.vault.layout import Header, replica_of
from deadpool.proto.vault.transport import ReplicaSender, SlotPart
from deadpool.proto.vault.wire import Put
from deadpool.trainer_hooks.protection.slots import OpenSlot

RETRY_S = 0.2
PATIENCE_S = 5.0  # with a holder that is out of reach: until then the supervisor has noticed that it is lost


class Holders:
    """Of one rank in one generation. `send` is for the protect thread alone."""

    def __init__(self, holders: Sequence[ReplicaSender], generation: int, cancelled: threading.Event) -> None:
        self._holders, self._generation, self._cancelled = holders, generation, cancelled
        self._reserved_bytes = 0

    def send(self, slot: OpenSlot, keep_step: int) -> int:
        """Returns how many bytes were sent, once every holder has acknowledged the slot's unique part. `keep_step`: the newest
        commit.

        SnapshotError: a holder refuses, or stays out of reach. UnavailableError: the generation has ended.
        """
        header, tables = replica_of(slot.header, slot.tables)
        request = Put(
            rank=header.rank,
            generation=header.generation,
            step=header.step,
            keep_step=keep_step,
            data_offset=header.data_offset,
            data_bytes=header.data_bytes,
            tables_bytes=header.tables_bytes,
            sender_generation=self._generation,
        )
        parts = slot.unique_parts()
        for holder in self._holders:
            self._put(holder, request, parts, tables, header)
        if self._cancelled.is_set():
            raise UnavailableError("the generation ended before the replicas were acknowledged")
        self._reserved_bytes = max(self._reserved_bytes, header.slot_bytes)
        return header.data_bytes * len(self._holders)

    def close(self) -> None:
        """Ends what is under way; any thread."""
        for holder in self._holders:
            holder.close()

    def _put(self, holder: ReplicaSender, request: Put, parts: list[SlotPart], tables: bytes, header: Header) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not self._cancelled.is_set():
            try:
                if header.slot_bytes > self._reserved_bytes:
                    holder.reserve(request.rank, header.slot_bytes)
                holder.put(request, parts, tables, header.to_page())
                return
            except UnavailableError as error:
                if time.monotonic() > until_s:
                    raise SnapshotError(str(error)) from error
                self._cancelled.wait(RETRY_S)
