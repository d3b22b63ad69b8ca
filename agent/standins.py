"""How many stand-ins does this node start, and when? None while it recovers: they would compete for the CPU. Pure."""

from collections.abc import Collection

REFILL_DELAY_S = 5.0  # a recovery that takes longer gets its competition for the CPU after all
STANDIN_FAILURES_MAX = 3  # in a row: the script does not reach join() here


class Standins:
    """`wanted`: as WarmUp said last. `ranks`: those of this node that have a live process."""

    def __init__(self) -> None:
        self.wanted = 0
        self._failures = 0
        self._generation = 0  # of the newest recovery or start
        self._until_s = 0.0  # the recovery counts as under way until then; 0: no more
        self._resumed: set[int] = set()  # ranks that have completed a step since

    def started(self, generation: int) -> None:
        """All ranks start: nothing is recovered."""
        self._generation, self._until_s, self._resumed = generation, 0.0, set()

    def recovers(self, generation: int, *, now_s: float) -> None:
        self._generation, self._until_s, self._resumed = generation, now_s + REFILL_DELAY_S, set()

    def resumed(self, generation: int, rank: int) -> None:
        """The rank has completed a step in that generation."""
        if generation == self._generation:
            self._resumed.add(rank)

    def reached_join(self) -> None:
        """A stand-in waits for a rank."""
        self._failures = 0

    def ended(self, *, killed: bool) -> None:
        """A stand-in has ended; by itself, unless it was killed."""
        self._failures += not killed

    def to_start(self, waiting: int, ranks: Collection[int]) -> int:
        """Returns how many are to be started now, when so many wait."""
        return 0 if self._recovering(ranks) else self._missing(waiting)

    def next_deadline_s(self, waiting: int, ranks: Collection[int]) -> float | None:
        """Returns when missing ones may be started although the recovery is not over; None when that is no question."""
        return self._until_s if self._missing(waiting) and self._recovering(ranks) else None

    def tick(self, ranks: Collection[int], *, now_s: float) -> None:
        if self._recovering(ranks) and now_s >= self._until_s:
            self._until_s = 0.0

    def _recovering(self, ranks: Collection[int]) -> bool:
        return self._until_s > 0 and not (ranks and self._resumed >= set(ranks))

    def _missing(self, waiting: int) -> int:
        return 0 if self._failures >= STANDIN_FAILURES_MAX else max(0, self.wanted - waiting)
