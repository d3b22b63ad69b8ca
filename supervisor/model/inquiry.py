"""The steps do not advance, and the agents are asked why: what has been answered so far."""

from dataclasses import dataclass, field

from deadpool.proto.messages import RankCalls


@dataclass(slots=True, kw_only=True)
class Inquiry:
    """The agents are asked what their ranks wait for. `sure`: the user's own timeout is over, not a learned one.

    `steps`: of all ranks when it was asked. `culprit`: the rank that is being killed, with what it has done.
    """

    generation: int
    stalled_s: float
    sure: bool
    deadline_s: float
    owing: set[str]
    steps: tuple[int, ...]
    ranks: list[RankCalls] = field(default_factory=list)
    culprit: int | None = None
    cause: str = ""
