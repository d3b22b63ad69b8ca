"""What happened on this node in starts and recoveries, by its own clock: moments.jsonl in its log folder (`deadpool trace`)."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from deadpool.proto import messages

FILE = "moments.jsonl"
_OF_RANKS = (
    messages.RankJoined,
    messages.RankPrepared,
    messages.RankReformed,
    messages.RankRestored,
    messages.RankResumed,
    messages.RankBroken,
    messages.RankExited,
)


class Moments:
    """One line for each moment of each rank; what cannot be written is left out. `wall_s`: the calendar clock."""

    def __init__(self, folder: Path, wall_s: Callable[[], float] = time.time) -> None:
        self._path = folder / FILE
        self._wall_s = wall_s
        self._file: TextIO | None = None

    def said(self, message: messages.AgentMessage) -> None:
        """Something that a rank, or this agent about it, tells the supervisor."""
        if isinstance(message, _OF_RANKS):
            self._write(type(message).__name__, message.generation, (message.rank,))

    def ordered(self, order: messages.Order, ranks: tuple[int, ...]) -> None:
        """`ranks`: that have a process here."""
        match order:
            case messages.Quiesce(generation=generation):
                self._write("Quiesce", generation, ranks)
            case messages.Assign(generation=generation, placements=placements, hot=False):
                self._write("Assign", generation, tuple(each.rank for each in placements))
            case messages.StartRanks(generation=generation, placements=placements):
                self._write("StartRanks", generation, tuple(each.rank for each in placements))
            case messages.Reform(generation=generation):
                self._write("Reform", generation, ranks)
            case _:
                pass

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, moment: str, generation: int, ranks: tuple[int, ...]) -> None:
        wall_s = self._wall_s()
        lines = [{"wall_s": wall_s, "generation": generation, "rank": rank, "moment": moment} for rank in ranks]
        try:
            if self._file is None:
                self._file = self._path.open("a", buffering=1)
            self._file.writelines(f"{json.dumps(line)}\n" for line in lines)
        except OSError:  # no room, or no descriptor: a trace is worth less than the job
            return
