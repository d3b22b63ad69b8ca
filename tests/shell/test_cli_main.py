"""deadpool status, events, inject, stop against a real supervisor to which no agent has come yet."""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import grpc
import pytest
from launching import until

from deadpool.cli.launcher.job_dirs import job_folder, read_endpoint
from deadpool.cli.main import run
from deadpool.proto import convert
from deadpool.proto.config import JobConfig
from deadpool.proto.generated import status_pb2_grpc
from deadpool.proto.messages import status as status_messages
from deadpool.proto.secret import TOKEN_KEY


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Yields the job's folder and the supervisor's process."""
    config = JobConfig(job_id="j", nnodes=2, nproc_per_node=2, command=("t.py",), python=sys.executable, log_dir=str(tmp_path))
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with job_folder(config) as folder:
            own = ["--job-dir", str(folder), "--dashboard", "127.0.0.1:0"]
            command = [sys.executable, "-m", "deadpool.supervisor.main", *own]
            with (tmp_path / "err").open("wb") as err:
                process = subprocess.Popen(command, stderr=err)
            try:
                until((folder / "endpoint.json").exists, 60.0, "the supervisor listens")
                yield folder, process
            finally:
                process.terminate()
                process.wait(60.0)


def test_status_events_and_refusals(
    supervisor: tuple[Path, subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy of the site is not asked
    assert run(["status", "--json"]) == 0
    status = json.loads(capfd.readouterr().out)
    assert (status["job_id"], status["phase"], status["world_size"], status["recoveries"]) == ("j", "assemble", 4, [])
    assert run(["status", "--job", "j"]) == 0
    assert "assemble" in capfd.readouterr().out
    assert run(["events"]) == run(["events", "--json"]) == 0
    assert run(["dashboard"]) == 0
    link = capfd.readouterr().out.strip()
    address, _, key = link.partition("/#key=")
    request = Request(f"{address}/api/live", headers={"Authorization": f"Bearer {key}"})
    with build_opener(ProxyHandler({})).open(request, timeout=60) as live:
        while not (line := live.readline()).startswith(b'data: {"now"'):
            assert line
    assert json.loads(line.removeprefix(b"data: "))["status"].keys() == status.keys()
    assert run(["inject", "kill-rank", "9"]) == 2
    assert "9" in capfd.readouterr().err
    assert run(["status", "--job", "k"]) == 2
    assert "no job 'k' is running; running: j" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inject"], "Missing argument 'KIND'. Choose from: kill-node, kill-agent"),
        (["inject", "kill-rank"], "kill-rank: say which rank"),
        (["inject", "kill-cat", "0"], "'kill-cat' is not one of"),
        (["logs"], "Missing argument 'RANK'"),
        (["logs", "0"], "no job is running"),
        (["drain"], "Missing argument 'NODE'"),
        (["stop", "now"], "unexpected extra argument"),
        (["status", "--job", "nowhere/at/all"], "no job runs from there, and none has left its events there"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str], words: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run(arguments) == 2
    out, err = capfd.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_wrong_token_is_refused_and_logged_once(
    supervisor: tuple[Path, subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, process = supervisor
    token = folder / "token"
    right = token.read_text()
    token.write_text("0" * 64)
    for _ in range(3):
        assert run(["status"]) == 1
        assert "UNAUTHENTICATED" in capfd.readouterr().err
    token.write_text(right)
    assert run(["status", "--json"]) == 0
    assert process.poll() is None
    assert (tmp_path / "err").read_text().count("refused a call") == 1


def test_stop_ends_the_job_and_waits(supervisor: tuple[Path, subprocess.Popen[bytes]]) -> None:
    folder, process = supervisor
    target = read_endpoint(folder).endpoint
    with grpc.insecure_channel(target) as channel:
        stub = status_pb2_grpc.StatusStub(channel)
        metadata = ((TOKEN_KEY, (folder / "token").read_text()),)
        follower = stub.Events(convert.encode(status_messages.EventsRequest(follow=True)), metadata=metadata)
        stub.Stop(convert.encode(status_messages.StopRequest(reason="test")), metadata=metadata)
        seen = [json.loads(line.json) for line in follower]  # ends with the job
    assert seen[-1]["event"] == "job_ended"
    assert process.wait(60.0) == 143


def test_a_job_whose_supervisor_is_gone_does_not_answer(
    supervisor: tuple[Path, subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deadpool.cli.client._TIMEOUT_S", 0.2)
    _, process = supervisor
    process.kill()
    process.wait(60.0)
    assert run(["status"]) == 1
    assert "does not answer" in capfd.readouterr().err


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(
    supervisor: tuple[Path, subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _ = supervisor
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "deadpool.supervisor.main", "--job-dir", str(folder), "--port", port]
        assert subprocess.run(command, check=False, timeout=60).returncode == 2
    err = capfd.readouterr().err
    assert f"--port {port}" in err
    assert "Traceback" not in err
