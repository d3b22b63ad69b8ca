"""Are replicated bytes the same on all their holders? Compared every so many steps through the generation's store.

What differs has been changed behind everybody's back: by a broken memory cell, a stray write, a kernel that errs at times.
Three holders or more outvote one; of two nobody can tell. Of three or more no two of which hold the same nothing is said: no one
fault does that, the script trains a state of each rank's own from here on (local SGD, a learning rate by each rank's loss), and
the commit will find that its ranks have parted (commit.py). Buffers are left out: they may differ by right (running means).
"""

import struct
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deadpool.host.errors import UnavailableError
from deadpool.proto.messages import NO_STEP
from deadpool.proto.vault.layout import checksum
from deadpool.trainer_hooks.protection.commit import verdict_key
from deadpool.trainer_hooks.protection.peers import Peers
from deadpool.trainer_hooks.store_wait import wait_for
from deadpool.trainer_hooks.torch_internals import Store

_COMPARED = ("model/", "optimizer/")
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`ranks`: that hold something else than the majority; all holders where there is none. `teller`: reports it."""

    ranks: tuple[int, ...]
    item: str
    majority: bool
    teller: int


def compare(tables: Mapping[int, Mapping[int, int]], rank: int, keys: Mapping[str, int], peers: Peers) -> Verdict | None:
    """Returns what is wrong with the items that this rank holds together with others, None when nothing is.

    `tables[r]`: hash of key -> checksum, as rank r holds it. `keys`: this rank's items and their hashes.
    """
    doubt: Verdict | None = None
    for key, hashed in keys.items():
        holders = sorted({rank, *peers.get(key, ())} & tables.keys())  # who was excluded since tells nothing
        sums = {each: tables[each].get(hashed) for each in holders}
        if len(set(sums.values())) == 1:
            continue
        value, votes = Counter(sums.values()).most_common(1)[0]
        if votes == 1 and len(holders) > _PAIR:
            continue
        if 2 * votes > len(holders):
            right = [each for each in holders if sums[each] == value]
            wrong = tuple(each for each in holders if sums[each] != value)
            return Verdict(ranks=wrong, item=key, majority=True, teller=right[0])
        doubt = doubt or Verdict(ranks=tuple(holders), item=key, majority=False, teller=holders[0])
    return doubt


class Verifier:
    """One rank's part in it, in one generation of these `ranks`. `store`: as for the commits."""

    def __init__(self, store: Store, *, rank: int, ranks: Sequence[int], cancelled: threading.Event) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._cancelled = cancelled
        self._told_step = NO_STEP  # the newest state that this rank has reported

    def verdict(self, step: int, sums: Mapping[str, int], peers: Peers, *, again: bool = False) -> Verdict | None:
        """Returns what is wrong with S_step, once all ranks have told what they hold.

        `again`: as of the commits. UnavailableError: the generation is over. RefusedError: another rank cannot protect S_step,
        and may not tell.
        """
        keys = {key: checksum(key.encode()) for key in sums if key.startswith(_COMPARED)}
        rows = b"".join(struct.pack("<QQ", hashed, sums[key]) for key, hashed in keys.items())
        names = [f"verify/{step}/{rank}" for rank in self._ranks]
        try:
            self._store.set(f"verify/{step}/{self._rank}", rows)  # type: ignore[arg-type]
            before, self._told_step = self._told_step, step
            if not wait_for(self._store, names, self._cancelled, or_refused=verdict_key(step, again=again)):
                raise UnavailableError("the generation ended before all ranks had told what they hold")
            published = self._store.multi_get(names)
            self._store.delete_key(f"verify/{before}/{self._rank}")  # the others have read it, or they would not be here
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error
        told = zip(self._ranks, published, strict=True)
        tables = {rank: dict(struct.iter_unpack("<QQ", bytes(table))) for rank, table in told}
        return compare(tables, self._rank, keys, peers)
