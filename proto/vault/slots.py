"""Which of two slots may be written next. Pure; the one rule for a rank's snapshots and for its replicas at their holder.

Why two are enough: S_k+1 is written only once commit(k) is known, and never over S_k. So at every moment the newest committed
state lies sealed in one slot of every rank, whatever happens to the other one.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class StateId:
    """A state's identity: its step, and the generation in which that step was completed (not one that merely restored it)."""

    generation: int
    step: int


def slot_to_write(held: Sequence[StateId | None], *keep_steps: int) -> int:
    """Returns the index of the slot to overwrite: an empty or torn one first, then one that is not to be kept, then the older.

    `keep_steps`: above all the newest committed step, which a recovery may still need; NO_STEP before the first commit. A dead
    branch cannot hold that step: it lies behind the resume step, and is overwritten before the commits get there.
    """

    def cost(index: int) -> tuple[int, int, int]:
        state = held[index]
        return (0, 0, 0) if state is None else (2 if state.step in keep_steps else 1, state.generation, state.step)

    return min(range(len(held)), key=cost)
