"""Signals as torchrun's users and Slurm's expect them: ranks get the one that came. Those that ignore it: test_launch_ends.py."""

import signal
from pathlib import Path

import pytest
from launching import Launcher, until

pytestmark = pytest.mark.e2e

# A rank ends well on any signal, and says which.
LISTENS = """
import signal, sys, time
def heard(number, frame):
    print("heard", signal.Signals(number).name, flush=True)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, heard)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("sent", [(signal.SIGUSR1,), (signal.SIGCONT, signal.SIGTERM)], ids=["usr1", "scancel"])
def test_ranks_get_the_signal_that_came(launcher: Launcher, tmp_path: Path, sent: tuple[signal.Signals, ...]) -> None:
    script = tmp_path / "listens.py"
    script.write_text(LISTENS)
    options = ["--nproc-per-node", "2", "--signals-to-handle", "SIGTERM,SIGUSR1", "--shutdown-timeout", "60"]
    job = launcher.start(*options, str(script))
    until(lambda: job.out.count("up") == 2, 80, "both ranks are up")
    for number in sent:
        job.process.send_signal(number)
    outcome = job.wait()
    assert outcome.exit_code == 128 + sent[-1]
    assert outcome.out.count(f"heard {sent[-1].name}") == 2
    assert sent[-1].name in outcome.err
    until(lambda: not job.pids(), 60, "its processes are gone")
