"""The rank's side of saving its stacks: registered at join(), before any collective."""

import faulthandler
import os
import signal
from pathlib import Path
from typing import BinaryIO

from deadpool.proto.stacks import STACKS_SIGNAL, stacks_path

_file: BinaryIO | None = None  # faulthandler keeps its number only


def offer_stacks(vault_dir: Path) -> None:
    """The main thread's stack is appended to a file of this process whenever the signal comes; not if it is used already.

    Not those of other threads: they run on while faulthandler reads their frames, and the process may die of it (SIGSEGV).
    """
    global _file
    if _file is None and signal.getsignal(STACKS_SIGNAL) is signal.SIG_DFL:
        _file = stacks_path(vault_dir, os.getpid()).open("ab", buffering=0)
        faulthandler.register(STACKS_SIGNAL, file=_file, all_threads=False)
