"""One thing after the other is lost, also in the middle of a recovery, until no spare is left; the training ends the same."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import Job, Launcher, until
from training import finished, hurry

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "growing.py")


def start(launcher: Launcher, *options: str) -> Job:
    nodes = ("--standalone", "--nnodes", "3", "--nproc-per-node", "1", "--spares", "3", "--replicas", "2")
    training = ("--steps", "200", "--step-s", "0.1", "--slower-from", "50", "--grows-at", "0", "--grows-by", "64")
    return launcher.start(*nodes, "--summary-json", "summary.json", *options, SCRIPT, *training)


def agents(job: Job) -> dict[str, int]:
    """Returns the pid of each node's agent: it listens on the socket of that name."""
    found = {}
    for connection in psutil.net_connections("unix"):
        path = Path(str(connection.laddr))
        if path.parent == job.job_folder and connection.pid:
            found[path.stem] = connection.pid
    return found


def listener(port: int) -> int:
    """Returns the pid of the process that listens there, 0 when there is none."""
    for each in psutil.net_connections("tcp"):
        if each.status == "LISTEN" and each.laddr and each.laddr[1] == port and each.pid:
            return each.pid
    return 0


def event(job: Job, name: str, after: int) -> dict[str, Any]:
    """Returns the next event of that name behind the first `after` ones."""
    try:
        return until(lambda: [each for each in job.events()[after:] if each["event"] == name], 60, name)[0]
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.err}\n{job.events()[after:]}") from error


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="other processes' connections are seen by root only")
@pytest.mark.long
def test_store_spare_holder_and_all_spares(launcher: Launcher) -> None:
    unbroken = start(launcher)
    hurry(unbroken)
    reference = finished(unbroken)
    job = start(launcher, "--inject", "freeze-rank:0@5")

    event(job, "injection", 0)
    assert job.ask("inject", "thaw-rank", "0").returncode == 0  # before anybody takes the long step for a hang
    steps = (job.folder / "losses").read_text().count("\n")
    until(lambda: (job.folder / "losses").read_text().count("\n") > steps + 10, 60, "the steps go on")
    pids = until(lambda: found if len(found := agents(job)) == 6 else None, 60, "six agents")
    assert pids is not None
    assert "failure" not in [each["event"] for each in job.events()]

    seen = len(job.events())
    kill(listener(int((job.folder / "store-port").read_text())))  # the rendezvous store's process
    event(job, "recovered", seen)

    seen = len(job.events())
    kill(pids["node1"])
    first = event(job, "spare_chosen", seen)["node"]
    kill(pids[first])  # it has just begun to rehearse
    event(job, "plan", seen)
    kill(pids["node2"])  # it holds the replicas that are being fetched, or were
    until(lambda: [each for each in job.events()[seen:] if each["event"] == "node_lost" and each["node"] == "node2"], 60, "lost")
    event(job, "recovered", len(job.events()) - 1 if job.events()[-1]["event"] == "recovered" else seen)

    seen = len(job.events())
    until(lambda: job.status()["phase"] == "run", 60, "it runs")
    kill(pids["node0"])
    event(job, "waiting_for_node", seen)
    assert job.ask("inject", "boot-node", "1").returncode == 0
    event(job, "recovered", seen)
    hurry(job)
    broken = finished(job)
    broken.assert_same_as(reference)
    assert broken.summary["committed_steps_lost"] == 0
    lost = {each["node"] for each in job.events() if each["event"] == "node_lost"}
    assert lost >= {"node0", "node1", "node2", first}
    store, *_ = broken.summary["recoveries"]
    assert store["class"] == "transient", store
