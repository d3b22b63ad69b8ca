"""NCCL inside an open group: connecting and aborting. The only file that knows ProcessGroupNCCL.

ncclCommAbort can hang, and one communicator's abort can wait for another's. So all communicators of the process are aborted by
one helper thread between group_start and group_end, under a watchdog that ends the process: its agent gives the rank a new one.
"""

import logging
import os
import signal
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.torch_internals import GroupName, Store

log = logging.getLogger(__name__)
ABORT_TIMEOUT_S = 20.0

# torch's own monitors end the process when a peer has died, or an abort takes long. Read when a ProcessGroupNCCL is made.
LETS_SURVIVORS_LIVE = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # a failed or late collective is the generation's own affair (generation.py)
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # of its watchdog, which an abort that hangs holds up: our own watch ends that
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # in the watchdog's thread, where nobody could catch them
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # waits for the peers' dumps, of which some will never come
    "TORCH_NCCL_PROPAGATE_ERROR": "0",  # through the default store, to ranks that are about to recover
}


class Communicator:
    """One group's NCCL backend."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        self._aborted = False

    def take_abort(self) -> bool:
        """True for the first caller, who then aborts the communicator; aborting twice is undefined."""
        with self._lock:
            first, self._aborted = not self._aborted, True
        return first


def is_nccl(options: Any) -> bool:
    """Returns whether these are options for NCCL; also in a torch that was built without it."""
    return hasattr(options, "is_high_priority_stream")


def connect(
    group: dist.ProcessGroup, store: Store, name: str, global_ranks: list[int], timeout_s: float, options: Any = None
) -> Communicator:
    """Registers NCCL in `group` for CUDA tensors, as its default, and connects immediately: a failure shows here.

    `options`: ProcessGroupNCCL.Options of the script, of which all but time-out, ranks and name are kept, in each generation.
    """
    os.environ.update(LETS_SURVIVORS_LIVE)
    options = dist.ProcessGroupNCCL.Options() if options is None else options
    options._timeout = timedelta(seconds=timeout_s)
    options.global_ranks_in_group = global_ranks
    options.group_name = GroupName(name)
    backend = dist.ProcessGroupNCCL(store, group.rank(), group.size(), options)
    group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    backend.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return Communicator(backend)


def abort(communicators: Sequence[Communicator]) -> None:
    """Starts the abort of these communicators and returns; the watchdog kills the process if the abort hangs."""
    mine = [communicator for communicator in communicators if communicator.take_abort()]
    if not mine:
        return
    done = threading.Event()

    def run() -> None:
        try:
            first = mine[0].backend
            first._group_start()
            for communicator in mine:
                communicator.backend.abort()
            first._group_end()
        except RuntimeError:
            log.exception("NCCL abort failed; the communicators are left to their timeout")
        finally:
            done.set()

    def watch() -> None:
        if not done.wait(ABORT_TIMEOUT_S):
            log.error("NCCL abort still hangs after %.0f s: this process ends, its agent starts another", ABORT_TIMEOUT_S)
            os.kill(os.getpid(), signal.SIGKILL)

    daemons.run(run, "abort of NCCL")
    daemons.run(watch, "watch over the abort of NCCL", in_torch=False)
