"""Who else holds these bytes? One rule for DDP, ZeRO, FSDP and whatever comes: same key and same checksum on another node.

Every rank publishes its place, and for each of its items the hash of its key and its checksum. An item whose pair is found on one
node more than there are to be replicas is *replicated* (it need not travel: any of its holders can give it back, whichever nodes
are lost), all others are *unique*. Where nodes fail together (Placement.domain) it takes as many domains as well, as far as there
are so many. The ranks that hold an item judge it by what they all have published, so each of them finds the same. Nobody has to
say which parallelism is used, a wrong claim cannot survive (the checksums differ), and ranks that part later (a coincidence such
as zeros on every rank, or training that is by right each rank's own) are found out in the very state in which they do: see
commit.py.
"""

import json
import struct
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from deadpool.proto.vault.layout import checksum
from deadpool.trainer_hooks.protection.commit import verdict_key
from deadpool.trainer_hooks.store_wait import wait_for
from deadpool.trainer_hooks.torch_internals import Store

Peers = dict[str, tuple[int, ...]]  # key -> the other ranks that hold the same bytes, () if none does


class RankPlace(NamedTuple):
    """Where a rank is. `domain`: nodes of one fail together. `copies`: so many others keep what it alone has, and may be lost."""

    node_id: str
    domain: str
    copies: int


Published = Mapping[int, tuple[RankPlace, Set[tuple[int, int]]]]  # by rank: its place, and the pairs that it has published


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """`same`: the other ranks that hold the same bytes, one of them at least on another node. `relied_on`: the same, but () for
    the items that too few nodes hold: those are unique, as far as replicas are concerned.
    """

    same: Peers = field(default_factory=dict)
    relied_on: Peers = field(default_factory=dict)


class Exchange:
    """One rank's part in it, in one generation of these `ranks`. `store`: as for the commits."""

    def __init__(self, store: Store, *, rank: int, ranks: Sequence[int], place: RankPlace, cancelled: threading.Event) -> None:
        self._store, self._rank, self._ranks, self._place = store, rank, ranks, place
        self._cancelled = cancelled

    def peers(self, step: int, sums: Mapping[str, int], *, again: bool = False) -> Sharing | None:
        """Returns who else holds each of this rank's items at S_step; None when the generation ended before all had published.

        `again`: S_step is protected for the second time, because ranks have parted in it (commit.py). RefusedError: another rank
        cannot protect S_step, and may not publish anything.
        Traffic: 16 bytes an item, from every rank to every rank; done for a few states of a job only (schedule.py).
        """
        store, rank = self._store, self._rank
        hashes = {key: checksum(key.encode()) for key in sums}
        rows = b"".join(struct.pack("<QQ", hashes[key], value) for key, value in sums.items())
        name = f"layout/{step}{'/again' * again}"
        store.set(f"{name}/{rank}", json.dumps(self._place).encode() + b"\n" + rows)  # type: ignore[arg-type]
        others = [other for other in self._ranks if other != rank]
        keys = [f"{name}/{other}" for other in others]
        if others and not wait_for(store, keys, self._cancelled, or_refused=verdict_key(step, again=again)):
            return None
        held: dict[int, tuple[RankPlace, Set[tuple[int, int]]]] = {}
        for other, published in zip(others, store.multi_get(keys) if others else [], strict=True):
            place, _, table = bytes(published).partition(b"\n")
            held[other] = RankPlace(*json.loads(place)), set(struct.iter_unpack("<QQ", table))
        return sharing(held, self._place, {key: (hashes[key], value) for key, value in sums.items()})


def sharing(others: Published, place: RankPlace, own: Mapping[str, tuple[int, int]]) -> Sharing:
    """Returns who of the others holds what a rank at this place holds: its pairs, by key."""
    same, relied_on = Peers(), Peers()
    spread = len({place.domain, *(where.domain for where, _ in others.values())}) - 1
    for key, pair in own.items():
        ranks = tuple(sorted(rank for rank, (_, table) in others.items() if pair in table))
        places = [place, *(others[rank][0] for rank in ranks)]
        nodes, domains = {each.node_id for each in places}, {each.domain for each in places}
        copies = max(1, *(each.copies for each in places))
        same[key] = ranks if len(nodes) > 1 else ()
        relied_on[key] = ranks if len(nodes) > copies and len(domains) > min(copies, spread) else ()
    return Sharing(same=same, relied_on=relied_on)
