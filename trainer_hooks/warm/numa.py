"""--numa-binding: a rank runs on CPUs near its GPU, as torch itself finds them."""

import os
import sys
from collections.abc import Mapping

_MODE = "DEADPOOL_NUMA_BINDING"


def own_local_rank(environment: Mapping[str, str]) -> str:
    """Returns this rank's number on its node, also where LOCAL_RANK says 0 (--virtual-local-rank); "" for a stand-in."""
    if "RANK" not in environment:
        return ""
    return str(int(environment["RANK"]) % int(environment["LOCAL_WORLD_SIZE"]))


def bind_to_cpus(local_rank: str) -> None:
    """Binds this process as torchrun would bind that local rank. Without a GPU it runs where it is, and says so."""
    mode = os.environ.get(_MODE, "")
    if not mode or not local_rank:
        return
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    try:
        binding._maybe_apply_numa_binding_to_current_process(gpu_index=int(local_rank), numa_options=options)
    except Exception as error:  # torch's own words: no GPU, no such file in /sys, a CPU set that does not allow it
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        print(f"deadpool: --numa-binding {mode}: local rank {local_rank} is not bound: {reason}", file=sys.stderr, flush=True)
