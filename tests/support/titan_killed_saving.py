"""examples/train_titan_style.py, whose last rank dies once while it writes a checkpoint: half of its data is there."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import train_titan_style
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.futures import Future


class DyingWriter(FileSystemWriter):
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[Any]:
        written: Future[Any] = super().write_data(plan, planner)
        mark = Path("died")
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1 and not mark.exists():
            mark.touch()
            os.truncate(next(iter(Path(self.path).glob(f"__{os.environ['RANK']}_*"))), 100)
            os.kill(os.getpid(), signal.SIGKILL)
        return written


if __name__ == "__main__":
    train_titan_style.main(DyingWriter)
