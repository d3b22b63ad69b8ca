"""The stack of a rank's main thread, asked for from outside."""

import subprocess
import sys
from pathlib import Path

from deadpool.agent.health.stacks import save_stacks

BUSY = """
import signal, sys, threading
from pathlib import Path
from deadpool.proto.stacks import STACKS_SIGNAL
from deadpool.trainer_hooks.stacks import offer_stacks

def runs_on():
    threading.Event().wait()

def comes_back_to_it():
    while STACKS_SIGNAL not in signal.sigpending():
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [STACKS_SIGNAL])
    threading.Event().wait()

offer_stacks(Path(sys.argv[1]))
threading.Thread(target=runs_on, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [STACKS_SIGNAL])
print("ready", flush=True)
comes_back_to_it()
"""


def test_it_is_the_main_threads_also_while_another_would_take_the_signal(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            saved = save_stacks({3: process.pid}, tmp_path, tmp_path, "now")
            assert saved == {3: tmp_path / "stacks-rank-3-now.txt"}
            assert "in comes_back_to_it" in saved[3].read_text()
        finally:
            process.kill()
