"""How a rank learns that S_k is protected everywhere, or cannot be: the generation's rendezvous store, off the critical path.

Each rank adds 1 to `commit/k` once its snapshot is sealed and its replicas are acknowledged; the last one sets `verdict/k`, for
which the others look. A rank that cannot protect S_k sets `verdict/k` instead: it never adds its 1, so there is one verdict. No
supervisor is involved, so a commit does not depend on it being there.

With its announcement each rank says what it holds together with others, 8 bytes for each set of peers. The last one compares: a
lost rank could not be restored from a replica and peers that hold something else by now. Where they do, the verdict is that the
ranks have *parted*: all find out which items that are (peers.py), send them to their holders as well, and announce S_k again.

It also says how many steps it wishes from one protected state to the next (interval.py); the largest wish comes with the commit.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from deadpool.host.errors import UnavailableError
from deadpool.proto.vault.layout import checksum
from deadpool.proto.vault.together import Together
from deadpool.trainer_hooks.torch_internals import Store

_ASKED = 1 << 32  # added to the count by the rank that wants a checkpoint of the state
_OPEN = "open"
_WISH = struct.Struct("<I")  # steps: before the rows
_ROW = struct.Struct("<QQQ")  # a set's ranks (hashed), how many they are, what this one holds of it


class Outcome(Enum):
    """What has become of a state."""

    COMMITTED = b"committed"
    CHECKPOINT = b"checkpoint"  # committed, and to become a persistent checkpoint: one was asked for
    REFUSED = b"refused"
    PARTED = b"parted"  # what some ranks should hold alike is not the same on all of them


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a state. `interval`: the ranks' largest wish, 0 where it is not committed."""

    outcome: Outcome
    interval: int = 0

    def to_bytes(self) -> bytes:
        return self.outcome.value + b" %d" % self.interval

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        name, _, interval = data.partition(b" ")
        return cls(Outcome(name), int(interval))


def verdict_key(step: int, *, again: bool = False) -> str:
    return f"verdict/{step}{'/again' * again}"


def have_parted(said: Iterable[bytes]) -> bool:
    """Returns whether what the ranks have said of their sets does not agree, or not all of a set have said anything of it."""
    found: dict[tuple[int, int], list[int]] = {}
    for rows in said:
        for ranks, count, total in _ROW.iter_unpack(rows):
            found.setdefault((ranks, count), []).append(total)
    return any(len(totals) != count or len(set(totals)) > 1 for (_, count), totals in found.items())


def _said(together: Together) -> bytes:
    return b"".join(
        _ROW.pack(checksum(struct.pack(f"<{len(ranks)}I", *ranks)), len(ranks), total) for ranks, total in together.items()
    )


class CommitBoard:
    """One rank's view of the commits of one generation, which has these `ranks`. `store`: a client of its own, for the protect
    thread alone.

    `again`: of a state that is announced for the second time, because ranks have parted in it.
    """

    def __init__(self, store: Store, *, rank: int, ranks: Sequence[int]) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._announced: list[int] = []  # the last three states

    def announce(
        self, step: int, together: Together, *, again: bool = False, checkpoint: bool = False, interval: int = 1
    ) -> Known | None:
        """This rank's S_step is protected, and it holds this `together` with others; `checkpoint`: it wants the state kept,
        `interval`: and the next one after so many steps.

        Returns the verdict if this rank is the last one. UnavailableError: store gone.
        """
        if step not in self._announced:
            self._announced = [*self._announced[-2:], step]
        try:
            # overwritten with each state: nobody announces the next one before the verdict on this one is out
            self._store.set(self._said_by(self._rank), _WISH.pack(interval) + _said(together))  # type: ignore[arg-type]
            count_key = f"commit/{step}{'/again' * again}"
            asked, count = divmod(self._store.add(count_key, 1 + _ASKED * checkpoint), _ASKED)
            if count < len(self._ranks):
                return None
            said = [*map(bytes, self._store.multi_get([self._said_by(rank) for rank in self._ranks]))]
            wish = max(_WISH.unpack_from(each)[0] for each in said)
            known = Known(Outcome.CHECKPOINT if asked else Outcome.COMMITTED, wish)
            if have_parted(each[_WISH.size :] for each in said):
                known = Known(Outcome.PARTED)
            self._store.set(verdict_key(step, again=again), known.to_bytes())  # type: ignore[arg-type]
            for old in self._announced[:-2]:
                self._store.delete_key(f"commit/{old}")
                self._store.delete_key(verdict_key(old))
            return known
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error

    def _said_by(self, rank: int) -> str:
        return f"together/{rank}"

    def refuse(self, step: int, *, again: bool = False) -> None:
        """This rank cannot protect S_step: nobody need wait for its commit. UnavailableError when the store is gone."""
        try:
            self._store.set(verdict_key(step, again=again), Known(Outcome.REFUSED).to_bytes())  # type: ignore[arg-type]
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error

    def look(self, step: int, *, again: bool = False) -> Known | None:
        """Returns what has become of S_step; None when that is not known yet. UnavailableError: store gone."""
        try:  # one question to the store: a key that is not there answers with what was expected of it
            found = bytes(self._store.compare_set(verdict_key(step, again=again), _OPEN, _OPEN))
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store: {error}") from error
        return None if found == _OPEN.encode() else Known.from_bytes(found)
