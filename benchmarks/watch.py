"""Watches a loss log from outside: when did which rank complete which step? The same eyes for every system."""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOOK_EVERY_S = 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One line of the loss log. `at_s`: time.monotonic() when it was read, at most LOOK_EVERY_S after it was written."""

    rank: int
    step: int
    loss: str
    at_s: float


class LossWatch:
    """Everything that was written to a loss log so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[Seen] = []
        self._read_bytes = 0
        self._rest = b""

    def look(self) -> list[Seen]:
        """Reads what is new and returns it. A log that was emptied (a run that began from scratch) is read from its start."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if self.path.stat().st_size < self._read_bytes:
                self._read_bytes, self._rest = 0, b""
            file.seek(self._read_bytes)
            new = file.read()
        at_s = time.monotonic()
        self._read_bytes += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        found = [Seen(rank=line["rank"], step=line["step"], loss=line["loss"], at_s=at_s) for line in map(json.loads, lines)]
        self.seen += found
        return found

    def until(self, condition: Callable[[], bool], *, timeout_s: float, alive: Callable[[], bool]) -> bool:
        """Looks until the condition holds; False when the time is up or the job has ended without it."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            running = alive()
            self.look()
            if condition():
                return True
            if not running or time.monotonic() > deadline_s:
                return False
            time.sleep(LOOK_EVERY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """What the log says of a failure in step `step`; seconds after the kill (`silent_s`: after the last step before it)."""

    first_line_s: float  # some rank has completed some step
    any_step_s: float  # every rank has completed some step, perhaps one that it had completed before
    new_step_s: float  # every rank has completed a step that no rank had completed before
    silent_s: float  # the same, from the last line before the kill
    steps_reexecuted: int


def measure_outage(seen: list[Seen], *, ranks: int, step: int, killed_at_s: float) -> Outage | None:
    """Returns how long the training stood still; None when not every rank came back."""
    before = [line for line in seen if line.at_s <= killed_at_s]
    after = [line for line in seen if line.at_s > killed_at_s]
    any_step = first_arrivals(after)
    new_step = first_arrivals([line for line in after if line.step >= step])
    if len(new_step) < ranks or not before:
        return None
    done = {(line.rank, line.step) for line in before}
    return Outage(
        first_line_s=min(any_step.values()) - killed_at_s,
        any_step_s=max(any_step.values()) - killed_at_s,
        new_step_s=max(new_step.values()) - killed_at_s,
        silent_s=max(new_step.values()) - before[-1].at_s,
        steps_reexecuted=len({line.step for line in after if (line.rank, line.step) in done}),
    )


def first_arrivals(seen: list[Seen]) -> dict[int, float]:
    """Returns when each rank's first line came."""
    first: dict[int, float] = {}
    for line in seen:
        first.setdefault(line.rank, line.at_s)
    return first


def step_times(seen: list[Seen], *, rank: int, first: int, last: int) -> list[float]:
    """Returns the seconds between one rank's lines of the steps first..last, without a failure between them."""
    at_s = [line.at_s for line in seen if line.rank == rank and first <= line.step <= last]
    return [later - earlier for earlier, later in itertools.pairwise(at_s)]


def losses(seen: list[Seen]) -> dict[tuple[int, int], str]:
    """Returns the last loss of each (step, rank)."""
    return {(line.step, line.rank): line.loss for line in seen}
