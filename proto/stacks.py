"""How an agent gets a rank's Python stack from outside: a signal makes faulthandler append it to a file in the vault's folder.

It works while the rank's main thread is stuck in C code, and needs neither ptrace nor the interpreter's lock.
"""

import signal
from pathlib import Path

STACKS_SIGNAL = signal.SIGRTMAX - 2  # a real-time one that nobody's training script, Slurm or NCCL uses


def stacks_path(vault_dir: Path, pid: int) -> Path:
    return vault_dir / f"stacks-{pid}"
