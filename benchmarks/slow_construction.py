"""examples/train_gpt.py with a model that takes longer to build, as real ones do.

    deadpool-launch ... benchmarks/slow_construction.py SECONDS --steps 100

The seconds pass after join() and before the model is there: what reads weights, compiles, or moves them to a device.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import train_gpt
from gpt_parallel import spread


def built_slowly(seconds: float) -> Any:
    def build(*arguments: Any) -> Any:
        time.sleep(seconds)
        return spread(*arguments)

    return build


if __name__ == "__main__":
    vars(train_gpt)["spread"] = built_slowly(float(sys.argv.pop(1)))
    train_gpt.main()
