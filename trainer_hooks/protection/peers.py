"""Who else holds these bytes? One rule for DDP, ZeRO, FSDP and whatever comes: same key and same checksum on another node.

Every rank publishes for each of its items the hash of its key and its checksum. An item whose pair is found on another node is
*replicated* (it need not travel: any of its holders can give it back), all others are *unique*. Nobody has to say which
parallelism is used, a wrong claim cannot survive (the checksums differ), and ranks that part later (a coincidence such as zeros
on every rank, or training that is by right each rank's own) are found out in the very state in which they do (commit.py).
"""

import json
import struct
import threading
from collections.abc import Mapping

from deadpool.proto.vault.layout import checksum
from deadpool.trainer_hooks.protection.commit import verdict_key
from deadpool.trainer_hooks.store_wait import wait_for
from deadpool.trainer_hooks.torch_internals import Store

Peers = dict[str, tuple[int, ...]]  # key -> the other ranks that hold the same bytes; () is unique


class Exchange:
    """One rank's part in it, in one generation. `store`: as for the commits."""

    def __init__(self, store: Store, *, rank: int, world_size: int, node_id: str, cancelled: threading.Event) -> None:
        self._store, self._rank, self._world_size, self._node_id = store, rank, world_size, node_id
        self._cancelled = cancelled

    def peers(self, step: int, sums: Mapping[str, int], *, again: bool = False) -> Peers | None:
        """Returns the peers of each of this rank's items at S_step; None when the generation ended before all had published.

        `again`: S_step is protected for the second time, because ranks have parted in it (commit.py). RefusedError: another rank
        cannot protect S_step, and may not publish anything.
        Traffic: 16 bytes an item, from every rank to every rank; done for a few states of a job only (schedule.py).
        """
        store, rank = self._store, self._rank
        hashes = {key: checksum(key.encode()) for key in sums}
        rows = b"".join(struct.pack("<QQ", hashes[key], value) for key, value in sums.items())
        name = f"layout/{step}{'/again' * again}"
        store.set(f"{name}/{rank}", json.dumps(self._node_id).encode() + b"\n" + rows)  # type: ignore[arg-type]
        others = [other for other in range(self._world_size) if other != rank]
        keys = [f"{name}/{other}" for other in others]
        if others and not wait_for(store, keys, self._cancelled, or_refused=verdict_key(step, again=again)):
            return None
        held: dict[int, tuple[str, set[tuple[int, int]]]] = {}
        for other, published in zip(others, store.multi_get(keys) if others else [], strict=True):
            node, _, table = bytes(published).partition(b"\n")
            held[other] = json.loads(node), set(struct.iter_unpack("<QQ", table))
        return {key: _peers(held, self._node_id, (hashes[key], value)) for key, value in sums.items()}


def _peers(held: Mapping[int, tuple[str, set[tuple[int, int]]]], node_id: str, pair: tuple[int, int]) -> tuple[int, ...]:
    same = [(rank, node) for rank, (node, table) in held.items() if pair in table]
    return tuple(sorted(rank for rank, _ in same)) if any(node != node_id for _, node in same) else ()
