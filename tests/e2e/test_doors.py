"""Every door of docs/security.md is tried without its secret, on a job that trains: nothing is told, nothing changes."""

import contextlib
import json
import socket
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from launching import Job, Launcher, until
from ports import port_for_later
from training import ROOT, SMALL

from deadpool.host.addresses import join_host_port, split_host_port
from deadpool.host.errors import DeadpoolError
from deadpool.proto import convert, messages
from deadpool.proto.generated import agent_pb2, agent_pb2_grpc, rank_pb2_grpc, status_pb2, status_pb2_grpc
from deadpool.proto.messages import Endpoint
from deadpool.proto.secret import TOKEN_KEY, make_token, view_key
from deadpool.proto.version import own_version
from deadpool.trainer_hooks.protection.replicate import VaultClient

pytestmark = pytest.mark.e2e
_TIMEOUT_S = 60.0
_WRONG = ((), ((TOKEN_KEY, ""),), ((TOKEN_KEY, make_token()),))


def test_no_door_opens_without_its_secret(launcher: Launcher) -> None:
    metrics_port = port_for_later()
    ports = ("--dashboard", str(port_for_later()), "--metrics-port", str(metrics_port))
    options = ("--nnodes", "2", "--nproc-per-node", "1", *ports)
    job = launcher.start(*options, str(ROOT / "examples" / "train_gpt.py"), "--steps", "100000", *SMALL)
    before = until(lambda: _committed(job), 80, "states are committed")
    token = (job.job_folder / "token").read_text().strip()
    address = job.ask("dashboard").stdout.split("/#key=")[0]

    _files(job.job_folder)
    _supervisor(job)
    for node in before["nodes"]:
        _replicas(node["host"], node["port"])
        _agent(job.job_folder / f"{node['node_id']}.sock", token)
        _metrics(node["host"], node["metrics_port"], token)
    _metrics("127.0.0.1", metrics_port, token)
    _page(address, token)

    until(lambda: job.status()["commit_step"] > before["commit_step"], 60, "the job goes on")
    after = job.status()
    assert (after["phase"], after["generation"]) == ("run", before["generation"])
    assert job.ask("stop").returncode == 0
    assert job.wait().exit_code == 143
    assert not {event["event"] for event in job.events()} & {"failure", "injection_armed"}


def _committed(job: Job) -> dict[str, Any]:
    """Returns the status of a job that runs and has committed a few states, else nothing."""
    answer = job.ask("status", "--json")
    status: dict[str, Any] = json.loads(answer.stdout) if answer.returncode == 0 else {}
    return status if status.get("commit_step", 0) > 3 else {}  # before it runs: how the last job ended


def _files(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("token", "endpoint.json"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    for vault in Path("/dev/shm").glob(f"deadpool-{folder.name}-*"):
        assert stat.S_IMODE(vault.stat().st_mode) == 0o700


def _supervisor(job: Job) -> None:
    """What people may ask, an agent's stream and a relay's."""
    endpoint = json.loads((job.job_folder / "endpoint.json").read_text())["endpoint"]
    with grpc.insecure_channel(endpoint) as channel:
        status = status_pb2_grpc.StatusStub(channel)
        asked: dict[Any, Any] = {
            status.GetStatus: status_pb2.StatusRequest(),
            status.Inject: status_pb2.InjectRequest(kind="kill-rank", target=0, step=-1),
            status.Drain: status_pb2.DrainRequest(node="node0"),
            status.Diagnose: status_pb2.DiagnoseRequest(),
            status.Stop: status_pb2.StopRequest(reason="a stranger"),
        }
        hello = messages.Hello(node_id="node1", hint=1, host="127.0.0.1", port=1, pid=1, generation=0, version=own_version())
        agents = agent_pb2_grpc.SupervisorStub(channel)
        for metadata in _WRONG:
            for call, request in asked.items():
                with pytest.raises(grpc.RpcError) as refusal:
                    call(request, metadata=metadata, timeout=_TIMEOUT_S)
                _unauthenticated(refusal.value)
            streams = (
                status.Events(status_pb2.EventsRequest(), metadata=metadata, timeout=_TIMEOUT_S),
                agents.Attend(iter([convert.encode_agent_message(hello)]), metadata=metadata, timeout=_TIMEOUT_S),
                agents.Relay(iter([agent_pb2.FromGroup(node_id="node1")]), metadata=metadata, timeout=_TIMEOUT_S),
            )
            for stream in streams:
                with pytest.raises(grpc.RpcError) as refusal:
                    list(stream)
                _unauthenticated(refusal.value)


def _agent(path: Path, token: str) -> None:
    """Its ranks' socket: with the token alone a process that is none of its ranks gets nowhere either."""
    register = messages.Register(pid=1, version=own_version())
    with grpc.insecure_channel(f"unix:{path}") as channel:
        for metadata in (*_WRONG, ((TOKEN_KEY, token),)):
            stream = rank_pb2_grpc.AgentStub(channel).Serve(
                iter([convert.encode_rank_message(register)]), metadata=metadata, timeout=_TIMEOUT_S
            )
            with pytest.raises(grpc.RpcError) as refusal:
                list(stream)
            known = metadata and metadata[0][1] == token
            expected = grpc.StatusCode.NOT_FOUND if known else grpc.StatusCode.UNAUTHENTICATED
            assert cast(grpc.Call, refusal.value).code() is expected


def _replicas(host: str, port: int) -> None:
    """A challenge is all that a stranger gets, whatever it says."""
    with pytest.raises(DeadpoolError):
        VaultClient(Endpoint(node_id="it", host=host, port=port), make_token()).holdings()
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(b"x" * 4096)
        told = b""
        while data := stranger.recv(4096):
            told += data
        assert len(told) <= 32


def _metrics(host: str, port: int, token: str) -> None:
    """Whoever reaches them may read them: no secret is among them, and nothing can be asked for."""
    url = f"http://{join_host_port(host, port)}/metrics"
    text = urllib.request.urlopen(url, timeout=_TIMEOUT_S).read().decode()
    assert "deadpool_" in text
    assert token not in text
    assert view_key(token) not in text


def _page(address: str, token: str) -> None:
    """The page itself holds nothing of the job; what it asks for is given for the key, and the key opens nothing else."""
    host, port = split_host_port(address.removeprefix("http://"))
    with urllib.request.urlopen(f"http://{join_host_port(host, port)}/", timeout=_TIMEOUT_S) as answer:
        assert token not in answer.read().decode()
    for shown in ("", "Bearer no", f"Bearer {view_key(make_token())}"):
        request = urllib.request.Request(f"{address}/api/live", headers={"Authorization": shown} if shown else {})
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        assert refusal.value.code == 401
        refusal.value.close()


def _unauthenticated(error: BaseException) -> None:
    assert cast(grpc.Call, error).code() is grpc.StatusCode.UNAUTHENTICATED
