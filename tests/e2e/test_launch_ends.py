"""However a job ends, nothing of it is left within seconds: no process, no socket, no folder, nothing in /dev/shm."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from launching import Job, Launcher, until

pytestmark = pytest.mark.e2e

GONE_WITHIN_S = 60.0  # under five by design; a busy machine may take longer

# A rank that listens to no signal and has children of its own, in a session of their own.
STUBBORN = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    return str(path)


def started(launcher: Launcher, *arguments: str) -> Job:
    """Returns a job of two nodes of two ranks and a spare, all ranks up."""
    job = launcher.start("--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", *arguments)
    until(lambda: job.out.count("up") == 4, 80, "four ranks are up")
    return job


def shm(job: Job) -> list[Path]:
    return list(Path("/dev/shm").glob(f"deadpool-{job.job_id}-*"))


def assert_gone(job: Job, began_s: float, *, job_folder: bool = True) -> None:
    until(lambda: not job.pids(), GONE_WITHIN_S, "its processes are gone")
    print(f"all gone after {time.monotonic() - began_s:.2f} s")
    assert not shm(job)
    assert not job.job_folder.exists() or not job_folder


@pytest.mark.parametrize(
    ("number", "exit_code", "kind"),
    [(signal.SIGINT, 130, "ordinary"), (signal.SIGTERM, 143, "stubborn")],
)
def test_a_signal_stops_the_job(launcher: Launcher, script: str, number: signal.Signals, exit_code: int, kind: str) -> None:
    """Ranks that do not listen are killed."""
    job = started(launcher, script, kind)
    assert shm(job)
    began_s = time.monotonic()
    job.process.send_signal(number)
    assert job.wait().exit_code == exit_code
    assert_gone(job, began_s)
    assert number.name in job.err


def test_a_second_ctrl_c_does_not_wait(launcher: Launcher, script: str) -> None:
    job = started(launcher, "--shutdown-timeout", "60", script, "stubborn")
    job.process.send_signal(signal.SIGINT)
    until(lambda: "SIGINT" in job.err, 60, "the first Ctrl-C is noticed")
    began_s = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.wait().exit_code == 130
    assert_gone(job, began_s)


def test_kill_9_of_the_launcher_leaves_nothing(launcher: Launcher, script: str) -> None:
    job = started(launcher, script, "stubborn")
    began_s = time.monotonic()
    job.process.kill()
    job.process.wait(60)
    assert_gone(job, began_s, job_folder=False)
    if job.job_folder.exists():  # then the next launcher removes it
        assert launcher.run("--no-python", "true").exit_code == 0
        assert not job.job_folder.exists()


def test_kill_9_of_the_supervisor_changes_nothing(launcher: Launcher, script: str) -> None:
    """A new one takes over, and knows the job: it stops it."""
    job = started(launcher, script)
    endpoint = job.job_folder / "endpoint.json"
    supervisor = json.loads(endpoint.read_text())["pid"]
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: "agent_back" in [event["event"] for event in job.events()], 60, "a new one has taken over")
    assert "the supervisor was lost (SIGKILL)" in job.err
    assert job.ask("stop").returncode == 0
    assert job.wait().exit_code == 143
    assert [event["event"] for event in job.events()].count("generation") == 1


def test_deadpool_stop(launcher: Launcher, script: str) -> None:
    job = started(launcher, script)
    began_s = time.monotonic()
    answer = job.ask("stop")
    assert answer.returncode == 0, answer.stderr
    assert not job.job_folder.exists()
    assert job.wait().exit_code == 143
    assert_gone(job, began_s)


def test_a_dead_node_takes_its_processes_and_its_vault_with_it(launcher: Launcher, script: str) -> None:
    """An agent killed from outside, without hooks, restarts and spares: the job fails, saying which node."""
    job = started(launcher, "--spares", "0", script)
    node = next(each for each in job.status()["nodes"] if each["ranks"] and each["ranks"][0]["rank"] == 2)
    assert job.ask("inject", "kill-node", str(node["index"])).returncode == 0
    outcome = job.wait()
    assert outcome.exit_code == 1
    assert node["node_id"] in outcome.err
    until(lambda: not job.pids(), GONE_WITHIN_S, "its processes are gone")
