"""What cannot run is said in one line, exit code 2, nothing left; strangers on a job's ports do it no harm."""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import Job, Launcher, until

pytestmark = pytest.mark.e2e

# Ranks that meet again and again until told to stop.
MEETING = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
go_on = torch.ones(1)
meetings = 0
while go_on.item():
    go_on = torch.tensor([0.0 if Path(sys.argv[1]).exists() else 1.0])
    dist.broadcast(go_on, 0)
    meetings += 1
    if meetings == 100:
        print("meeting", flush=True)
print("done", flush=True)
dist.destroy_process_group()
"""


def test_an_interpreter_without_torch(launcher: Launcher, tmp_path: Path) -> None:
    """An interpreter that has all our packages but torch: a venv would be slow to make, a finder that hides it is the same."""
    python = tmp_path / "python-without-torch"
    hide = "import sys; sys.modules['torch'] = None"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(hide + "\n")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "site"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text("import torch\n")
    outcome = launcher.run("--nnodes", "2", str(script), environment={"PYTHON_EXEC": str(python)})
    assert outcome.exit_code == 2
    assert "torch is not installed for" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_port_that_is_taken(launcher: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = launcher.run("--port", port, "--no-python", "true")
    assert outcome.exit_code == 2
    assert f"--port {port}" in outcome.err
    assert not launcher.jobs[0].job_folder.exists()


def test_a_job_id_that_is_taken(launcher: Launcher) -> None:
    job = launcher.start("--no-python", "sleep", "600")
    until((job.job_folder / "endpoint.json").exists, 60, "the first job listens")
    outcome = launcher.run("--job-id", job.job_id, "--no-python", "true")
    assert outcome.exit_code == 2
    assert "is running" in outcome.err
    assert job.ask("status").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a small /dev/shm")
def test_a_dev_shm_that_is_too_small(launcher: Launcher, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "train_gpt.py"
    wrapped = [
        "unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"', "sh",
        sys.executable, "-m", "deadpool.cli.launch", "--job-id", f"t{os.getpid()}-shm", "--log-dir", str(tmp_path / "logs"),
        "--nnodes", "2", str(script), "--steps", "3",
    ]  # fmt: skip
    environment = os.environ | {"XDG_RUNTIME_DIR": str(launcher.runtime)}
    done = subprocess.run(wrapped, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2, done.stderr
    assert "are free" in done.stderr
    assert "needs" in done.stderr
    assert "Traceback" not in done.stderr


def listening_ports(job: Job) -> dict[int, str]:
    """Returns port -> who listens, of all TCP ports of all the job's processes."""
    found = {}
    for pid in job.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    found[each.laddr.port] = " ".join(process.cmdline()[-4:])
    return found


def disturb(port: int) -> None:
    """Does to a port what scanners, browsers and broken peers do."""
    for garbage in (
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(4096),
        b"\xff" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0",
    ):
        with socket.create_connection(("127.0.0.1", port), 5) as connection, contextlib.suppress(OSError):
            connection.sendall(garbage)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 5) as connection, contextlib.suppress(OSError):
        connection.settimeout(0.5)
        context.wrap_socket(connection)


def test_strangers_on_every_port_do_a_job_no_harm(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "meeting.py"
    script.write_text(MEETING)
    end = tmp_path / "end"
    job = launcher.start("--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", str(script), str(end))
    until(lambda: job.out.count("meeting") == 4, 80, "the ranks meet")
    ports = listening_ports(job)
    assert len(ports) >= 5  # the supervisor, three agents, the store
    open_ones = [socket.create_connection(("127.0.0.1", port), 5) for port in ports]  # and some who never say a word
    for port in ports:
        disturb(port)
    end.touch()
    outcome = job.wait()
    for connection in open_ones:
        connection.close()
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.count("done") == 4
    assert "Traceback" not in outcome.err
    assert outcome.err.count("refused") <= len(ports)
