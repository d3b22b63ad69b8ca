"""Runs an example whose steps take a second longer, so that what happens beside them has time: slowly.py SCRIPT ARGUMENTS..."""

import os
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_pre_hook

register_optimizer_step_pre_hook(lambda *_: time.sleep(1.0))
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
