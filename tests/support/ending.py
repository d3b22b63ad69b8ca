"""A process that ends while one of its threads is inside torch: `ending.py waited-for|stuck`.

A module's last object holds the interpreter in its finalization until the thread has come back from torch.
"""

import atexit
import contextlib
import sys
import time
from datetime import timedelta
from functools import partial
from types import ModuleType

from torch._C._distributed_c10d import HashStore
from torch.distributed import DistStoreError

from deadpool.trainer_hooks import process_end
from deadpool.trainer_hooks.groups.daemon_threads import DaemonThreads

COMES_BACK_S = 1.0
stuck = sys.argv[1] == "stuck"
daemons, store = DaemonThreads(), HashStore()


def wait_in_torch() -> None:
    with contextlib.suppress(DistStoreError):
        store.wait(["let go"], timedelta(seconds=600.0 if stuck else 0.5))


class LastOfAll:
    """A module's object, deleted while the interpreter goes down; of this module the thread holds all."""

    def __init__(self) -> None:
        self.let_go, self.sleep = partial(store.set, "let go", ""), time.sleep

    def __del__(self) -> None:
        self.let_go()
        self.sleep(COMES_BACK_S)


sys.modules["last"] = ModuleType("last")
sys.modules["last"].of_all = LastOfAll()  # type: ignore[attr-defined]
timeout_s = 0.1 if stuck else 60.0
daemons.run(wait_in_torch, "a wait")
atexit.register(lambda: process_end.wait_for_threads(daemons, [], timeout_s))
print("the script's end")
