"""examples/train_gpt.py under NVRx's ft_launcher: unchanged, with a heartbeat to the rank's monitor in every step."""

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nvidia_resiliency_ext.fault_tolerance as fault_tolerance  # type: ignore[import-not-found]

import deadpool

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"


class HeartbeatRun:
    """What join() returns, except that each completed step sends a heartbeat."""

    def __init__(self, run: deadpool.Run) -> None:
        self._run = run
        self._monitor = fault_tolerance.RankMonitorClient()
        self._monitor.init_workload_monitoring()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def protect(self, **parts: Any) -> "HeartbeatRun":
        self._guard = self._run.protect(**parts)
        return self

    def run(self, step: Callable[[int], Any], **limits: int) -> Iterator[tuple[int, Any]]:
        for done in self._guard.run(step, **limits):
            self._monitor.send_heartbeat()
            yield done


if __name__ == "__main__":
    join = deadpool.join
    setattr(deadpool, "join", lambda: HeartbeatRun(join()))  # noqa: B010 (mypy would want the very type)
    sys.argv[0] = str(SCRIPT)
    runpy.run_path(str(SCRIPT), run_name="__main__")
