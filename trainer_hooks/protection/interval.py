"""How often a state is kept safe where not every one can be, with --snapshot-every auto: as often as costs the training nothing.

Each rank measures what the protection of a state takes, and says with its announcement what interval it wishes. The largest wish
comes back with the verdict (commit.py), so all ranks hear the same one, and decide by it alike (schedule.py). Pure.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

AUTO = 0  # --snapshot-every auto
ALWAYS_BYTES = 32 << 20  # a state up to this size is kept at every step, whatever the machine does just now
STALL_SHARE = (
    0.0075  # of the time of a step, on the average, that the training may wait: what is measured varies, and 0.01 is promised
)
INTERVAL_MAX = 1000
_STATES = 3  # so many measured ones count
_STEPS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one state: `busy_s`, from the beginning of its copy to its announcement; `stall_s`, that a step had to wait for its copy
    (what it waited for the state before not counted).
    """

    busy_s: float
    stall_s: float


class Interval:
    """What one rank wishes. `every`: a fixed number of steps, or AUTO."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._states: deque[Measured] = deque(maxlen=_STATES)
        self._size_bytes = 0

    @property
    def busy_s(self) -> float:
        return median(each.busy_s for each in self._states) if self._states else 0.0

    def measured(self, state: Measured, size_bytes: int) -> None:
        self._states.append(state)
        self._size_bytes = size_bytes

    def wished(self, step_s: float) -> int:
        """Returns the number of steps from one state to the next. `step_s`: what a step takes by itself, 0 if not known yet."""
        if self._every != AUTO:
            return self._every
        if self._size_bytes <= ALWAYS_BYTES or not self._states or step_s <= 0:
            return 1
        stall_s = median(each.stall_s for each in self._states)
        wanted = max(self.busy_s / step_s, stall_s / (STALL_SHARE * step_s))
        return max(1, min(math.ceil(wanted), INTERVAL_MAX))


class StepTimes:
    """What a step takes by itself, from one boundary to the next, without what it waits for protection."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._times_s: deque[float] = deque(maxlen=_STEPS)

    def boundary(self, *, stalled_s: float, now_s: float) -> None:
        """`stalled_s`: the waits for protection so far, summed."""
        if self._last is not None:
            self._times_s.append(now_s - self._last[0] - (stalled_s - self._last[1]))
        self._last = now_s, stalled_s

    def step_s(self) -> float:
        times_s = list(self._times_s)  # on any thread
        return median(times_s) if times_s else 0.0
