"""A process that ends while one of its threads is inside torch: `ending.py waited-for|stuck`.

A module's last object holds the interpreter in its finalization until the thread has come back from torch.
"""

import atexit
import contextlib
import sys
import time
from datetime import timedelta

from torch._C._distributed_c10d import HashStore
from torch.distributed import DistStoreError

from deadpool.trainer_hooks import process_end
from deadpool.trainer_hooks.groups.daemon_threads import DaemonThreads

WAIT_S = 0.6
daemons = DaemonThreads()


def wait_in_torch() -> None:
    with contextlib.suppress(DistStoreError):
        HashStore().wait(["never"], timedelta(seconds=WAIT_S))


class LastOfAll:
    def __del__(self) -> None:
        time.sleep(2 * WAIT_S)


last_of_all = LastOfAll()
timeout_s = 0.1 if sys.argv[1] == "stuck" else 30.0
daemons.run(wait_in_torch, "a wait")
atexit.register(lambda: process_end.wait_for_threads(daemons, [], timeout_s))
print("the script's end")
