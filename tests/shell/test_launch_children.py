"""The launcher's children, with real processes: orphans of a dead agent are killed, however deep, and nobody else."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from launching import tagged_pids, until

# An agent that dies (SIGKILL to itself) and leaves a tree of processes in sessions of their own; beside it one that lives.
SCENARIO = """
import os, signal, subprocess, sys, time
from deadpool.cli.launcher.children import Children
from deadpool.host.lifetime import become_subreaper

earlier = subprocess.Popen(["sleep", "600"])  # as of a shell that did `sleep & exec deadpool-launch`
tree = "import subprocess, sys; p = subprocess.Popen(['sh', '-c', 'setsid sleep 610 & sleep 620'], start_new_session=True); "
become_subreaper()
children = Children()
children.start("doomed", [sys.executable, "-c", tree + "p.wait()"])
children.start("other", ["sleep", "630"])
print(children.pid("doomed"), children.pid("other"), flush=True)
sys.stdin.readline()
children.signal("doomed", signal.SIGKILL)
ended = []
while not ended or children.kill_orphans():
    ended += children.reap()
    time.sleep(0.01)
print(ended, flush=True)
sys.stdin.readline()
children.signal("other", signal.SIGTERM)
os.waitid(os.P_PID, children.pid("other"), os.WEXITED | os.WNOWAIT)
print(children.reap(), flush=True)
earlier.kill()
"""


def sleepers(tag: str) -> set[str]:
    found = set()
    for pid in tagged_pids(tag):
        words = [b""]
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[0].endswith(b"sleep"):
            found.add(words[1].decode())
    return found


def test_a_dead_agents_tree_is_killed_to_the_last_process_and_nothing_else(tmp_path: Path) -> None:
    tag = f"TREE={tmp_path.name}"
    process = subprocess.Popen(
        ["env", tag, sys.executable, "-c", SCENARIO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin as ask, process.stdout as answers:
        answers.readline()
        until(lambda: sleepers(tag) == {"600", "610", "620", "630"}, 60.0, "the tree stands")
        ask.write("\n")
        ask.flush()
        assert answers.readline().strip() == f"[('doomed', {-signal.SIGKILL})]"
        until(lambda: sleepers(tag) == {"600", "630"}, 60.0, "the dead agent's processes are gone, the others live")
        ask.write("\n")
        ask.flush()
        assert answers.readline().strip() == f"[('other', {-signal.SIGTERM})]"
        assert process.wait(60.0) == 0
