"""Signals as torchrun's users and Slurm's expect them: ranks get the one that came, and those that ignore it are killed."""

import signal
from pathlib import Path

import pytest
from launching import Launcher, until

pytestmark = pytest.mark.e2e

# Rank 0 ends well on any signal, and says which; rank 1 ignores all of them.
LISTENS = """
import os, signal, sys, time
def heard(number, frame):
    print("heard", signal.Signals(number).name, flush=True)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, heard if os.environ["RANK"] == "0" else signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("sent", [(signal.SIGUSR1,), (signal.SIGCONT, signal.SIGTERM)], ids=["usr1", "scancel"])
def test_ranks_get_the_signal_that_came(launcher: Launcher, tmp_path: Path, sent: tuple[signal.Signals, ...]) -> None:
    script = tmp_path / "listens.py"
    script.write_text(LISTENS)
    options = ["--nproc-per-node", "2", "--signals-to-handle", "SIGTERM,SIGUSR1", "--shutdown-timeout", "1"]
    job = launcher.start(*options, str(script))
    until(lambda: job.out.count("up") == 2, 80, "both ranks are up")
    for number in sent:
        job.process.send_signal(number)
    outcome = job.wait(40)
    assert outcome.exit_code == 128 + sent[-1]
    assert f"heard {sent[-1].name}" in outcome.out
    assert sent[-1].name in outcome.err
    assert not job.pids()
