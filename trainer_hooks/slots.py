"""Which of a rank's two slots may be written next. Pure; the same rule holds for snapshots and for replicas at their holder.

Why two are enough: S_k+1 is written only once commit(k) is known, and it goes to the slot that does not hold S_k. So at every
moment the newest committed state lies sealed in one slot of every rank, whatever happens to the other one.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class StateId:
    """A state by the generation in which it was stepped to or restored, and its step."""

    generation: int
    step: int


def slot_to_write(held: Sequence[StateId | None], keep: StateId | None) -> int:
    """Returns the index of the slot to overwrite: never the one that holds `keep`; an empty (or torn) one first, else the older.

    `keep`: the newest state that a recovery may still need; None before the first commit.
    """
    free = [index for index, state in enumerate(held) if keep is None or state != keep]
    assert free, f"no slot is free: {held} with {keep} to keep"
    return min(free, key=lambda index: (held[index] is not None, held[index] or StateId(generation=0, step=0)))
