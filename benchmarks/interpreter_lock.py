"""How long does a thread that computes wait for the interpreter's lock? The kernel says how long it ran, or had no core.

A tick is a small product of matrices, beside the lock as a training's operations are, and some Python around it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """`waited_s`: in all, for the lock. `longest_s`: of a tick, with whatever else has kept it."""

    ticks: int
    wall_s: float
    waited_s: float
    longest_s: float

    def figures(self) -> dict[str, float]:
        return {name: round(value, 5) for name, value in asdict(self).items()} | {
            "waited_share": round(self.waited_s / self.wall_s, 5)
        }


def tick(goes_on: Callable[[], bool]) -> Ticked:
    """Computes for as long as that, in the calling thread."""
    one, other = torch.rand(_WIDTH, _WIDTH), torch.rand(_WIDTH, _WIDTH)
    ticks, longest_s, (ran_s, kept_s) = 0, 0.0, _scheduled()
    began_s = last_s = time.perf_counter()
    while goes_on():
        torch.mm(one, other)
        now_s = time.perf_counter()
        longest_s = max(longest_s, now_s - last_s)
        last_s, ticks = now_s, ticks + 1
    wall_s, (ran_then_s, kept_then_s) = time.perf_counter() - began_s, _scheduled()
    waited_s = max(0.0, wall_s - (ran_then_s - ran_s) - (kept_then_s - kept_s))
    return Ticked(ticks=ticks, wall_s=wall_s, waited_s=waited_s, longest_s=longest_s)


def _scheduled() -> tuple[float, float]:
    """Returns for how long this thread has run so far, and been ready without a core."""
    ran_ns, kept_ns, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return int(ran_ns) / 1e9, int(kept_ns) / 1e9
