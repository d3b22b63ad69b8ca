"""Runs an example whose steps take a second longer, so that what happens beside them has time: slowly.py SCRIPT ARGUMENTS...

As soon as there is a file `hurry` in its folder they take no longer than they need.
"""

import os
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_pre_hook

register_optimizer_step_pre_hook(lambda *_: time.sleep(0.0 if os.path.exists("hurry") else 1.0))
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
