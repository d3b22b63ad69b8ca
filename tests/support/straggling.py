"""Runs an example whose rank 3 is slow on node1, and nowhere else: straggling.py SCRIPT ARGUMENTS..."""

import os
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_pre_hook


def slow_there(*_: object) -> None:
    if os.environ.get("DEADPOOL_NODE_ID") == "node1" and os.environ["RANK"] == "3":
        time.sleep(0.4)


register_optimizer_step_pre_hook(slow_there)
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
