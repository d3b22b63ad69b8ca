"""How far the drill has come (recovery/drill.py)."""

from dataclasses import dataclass, field

from deadpool.proto.drill import WayBack
from deadpool.proto.step import NO_STEP


@dataclass(slots=True, kw_only=True)
class Drill:
    """`step`: the boundary that is drilled. `way`: by which its ranks are coming, or have come. `left`: the ways not yet taken.

    `ready`: rank -> the generation in which it has come there. `without`: the node whose vault counts as lost.
    `checkpoint_deadline_s`: while only a checkpoint of the step before is waited for. `over`: the boundaries that are done.
    """

    step: int = NO_STEP
    way: WayBack = WayBack.NONE
    left: list[WayBack] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    without: str = ""
    checkpoint_deadline_s: float | None = None
    over: set[int] = field(default_factory=set)
