"""The stack of a rank's main thread, asked for from outside."""

import subprocess
import sys
from pathlib import Path

from deadpool.agent.health.stacks import save_stacks

BUSY = """
import os, signal, sys, threading
from pathlib import Path
from deadpool.proto.stacks import STACKS_SIGNAL, stacks_path
from deadpool.trainer_hooks.stacks import offer_stacks

def runs_on():
    threading.Event().wait()

def comes_back_to_it():
    while STACKS_SIGNAL not in signal.sigpending():
        pass
    if sys.argv[2:]:  # the first line of a stack, whose writer gets no time for the rest
        with stacks_path(Path(sys.argv[1]), os.getpid()).open("a") as file:
            file.write("the first line\\n")
        threading.Event().wait(0.5)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [STACKS_SIGNAL])
    threading.Event().wait()

offer_stacks(Path(sys.argv[1]))
threading.Thread(target=runs_on, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [STACKS_SIGNAL])
print("ready", flush=True)
comes_back_to_it()
"""


def stacks_of(folder: Path, *arguments: str) -> str:
    """Returns what a process has said that was asked while its main thread was not ready for the signal."""
    with subprocess.Popen([sys.executable, "-c", BUSY, str(folder), *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            saved = save_stacks({3: process.pid}, folder, folder, "now")
            assert saved == {3: folder / "stacks-rank-3-now.txt"}
            return saved[3].read_text()
        finally:
            process.kill()


def test_it_is_the_main_threads_also_while_another_would_take_the_signal(tmp_path: Path) -> None:
    assert "in comes_back_to_it" in stacks_of(tmp_path)


def test_it_is_whole_also_where_its_writer_gets_no_time_in_the_midst_of_it(tmp_path: Path) -> None:
    text = stacks_of(tmp_path, "slowly")
    assert text.startswith("the first line\n")
    assert "in comes_back_to_it" in text
