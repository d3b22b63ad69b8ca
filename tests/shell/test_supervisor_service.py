"""The supervisor as a process, with agents and strangers that speak gRPC."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import grpc
import pytest
from launching import until

from deadpool.proto import convert, messages
from deadpool.proto.config import JobConfig, from_json, to_json
from deadpool.proto.generated import agent_pb2, agent_pb2_grpc, status_pb2_grpc
from deadpool.proto.messages import AgentMessage, Order
from deadpool.proto.messages import status as status_messages
from deadpool.proto.secret import TOKEN_KEY, make_token, write_private
from deadpool.proto.version import PROTOCOL, own_version
from deadpool.supervisor.journal.replay import read_past
from deadpool.supervisor.model.phase import Phase

_TIMEOUT_S = 60.0
OrderKind = TypeVar("OrderKind", bound=Order)


class Agent:
    """One agent's stream, played by the test."""

    def __init__(
        self, channel: grpc.Channel, token: str, node_id: str, *, incarnation: int = 0, protocol: int = PROTOCOL
    ) -> None:
        self._said: queue.Queue[agent_pb2.AgentMessage | None] = queue.Queue()
        stub = agent_pb2_grpc.SupervisorStub(channel)
        self._orders = stub.Attend(iter(self._said.get, None), metadata=((TOKEN_KEY, token),), timeout=_TIMEOUT_S)
        hint = int(node_id.removeprefix("node"))
        fields = {"node_id": node_id, "hint": hint, "host": "127.0.0.1", "port": 1, "pid": os.getpid(), "generation": 0}
        version = replace(own_version(), protocol=protocol)
        self.say(messages.Hello(**fields, incarnation=incarnation, version=version))  # type: ignore[arg-type]

    def say(self, message: AgentMessage) -> None:
        self._said.put(convert.encode_agent_message(message))

    def hang_up(self) -> None:
        self._said.put(None)

    def hears(self, kind: type[OrderKind]) -> OrderKind:
        """Returns the next order of that kind; others before it are passed over."""
        for wire in self._orders:
            order = convert.decode_order(wire)
            if isinstance(order, kind):
                return order
        raise AssertionError(f"the stream ended before {kind.__name__}")

    def hears_the_end(self) -> None:
        for _ in self._orders:
            pass


class Supervisor:
    """The process and its job's folder."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        fields = {
            "job_id": "t", "nnodes": 1, "nproc_per_node": 1, "command": ("x",), "python": "python",
            "heartbeat_timeout_s": _TIMEOUT_S,  # agents say no more than the tests have them say
        } | options  # fmt: skip
        self.config = JobConfig(log_dir=str(folder / "logs"), **fields)  # type: ignore[arg-type]
        self.token = make_token()
        (folder / "job.json").write_text(to_json(self.config))
        write_private(folder / "token", self.token)
        self.summary = folder / "summary.json"

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "deadpool.supervisor.main", "--job-dir", str(self.folder)]
        with (self.folder / "err").open("wb") as err:
            self.process = subprocess.Popen([*command, "--summary-json", str(self.summary), *arguments], stderr=err)

    def channel(self) -> grpc.Channel:
        endpoint = self.folder / "endpoint.json"
        until(lambda: endpoint.exists() or self.process.poll() is not None, _TIMEOUT_S, "the supervisor listens")
        assert endpoint.stat().st_mode & 0o777 == 0o600
        self.endpoint = json.loads(endpoint.read_text())["endpoint"]
        return grpc.insecure_channel(self.endpoint)

    def wait(self) -> int:
        return self.process.wait(_TIMEOUT_S)

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def events(self) -> list[str]:
        path = self.folder / "logs" / "events.jsonl"
        return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path)
    supervisor.start()
    yield supervisor
    if supervisor.process.poll() is None:
        supervisor.process.kill()
        supervisor.process.wait()


def _run(agent: Agent) -> None:
    """Brings a job of one unhooked rank to its run."""
    assert agent.hears(messages.OpenStore).generation == 1
    agent.say(messages.StoreOpened(generation=1, host="127.0.0.1", port=9))
    assert agent.hears(messages.StartRanks).store_port == 9
    progress = messages.RankProgress(rank=0, pid=77, step=-1, commit_step=-1, steps_done=0, exposed_stall_s=0.0)
    agent.say(messages.Heartbeat(generation=1, ranks=(progress,)))


def test_of_two_agents_that_claim_one_node_the_older_must_stop(supervisor: Supervisor) -> None:
    with supervisor.channel() as channel:
        older = Agent(channel, supervisor.token, "node0", incarnation=5)
        assert older.hears(messages.OpenStore).generation == 1
        newer = Agent(channel, supervisor.token, "node0", incarnation=6)
        assert older.hears(messages.Stop).grace_s == 0.0
        older.hears_the_end()
        assert newer.hears(messages.Welcome)
        again = Agent(channel, supervisor.token, "node0", incarnation=5)  # it was frozen, say, and has not heard of it
        assert "started later" in again.hears(messages.Stop).reason
        again.hears_the_end()
        assert newer.hears(messages.OpenStore).generation >= 1  # the newer one's stream was not touched


def test_an_agent_of_another_version_is_refused(supervisor: Supervisor) -> None:
    with supervisor.channel() as channel:
        for _ in range(2):
            stranger = Agent(channel, supervisor.token, "node0", protocol=PROTOCOL + 1)
            with pytest.raises(grpc.RpcError) as refused:
                stranger.hears_the_end()
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            reason = refused.value.details() or ""
            assert f"(protocol {PROTOCOL + 1}), here is {own_version().package} (protocol {PROTOCOL})" in reason
        assert supervisor.err == f"deadpool: refused: {reason}\n"  # said once
        assert Agent(channel, supervisor.token, "node0").hears(messages.Welcome)


def test_a_job_from_hello_to_its_summary(supervisor: Supervisor) -> None:
    with supervisor.channel() as channel:
        agent = Agent(channel, supervisor.token, "node0")
        assert from_json(agent.hears(messages.Welcome).config_json) == supervisor.config
        _run(agent)
        agent.say(messages.RankExited(generation=1, rank=0, pid=77, exit_code=0))
        assert agent.hears(messages.Stop).reason == "done"
        agent.say(messages.Stopped())
        assert supervisor.wait() == 0
    assert json.loads(supervisor.summary.read_text())["exit_code"] == 0
    assert supervisor.events() == ["node_joined", "generation", "started", "rank_exited", "job_ended"]
    assert supervisor.err == ""
    past, _, _ = read_past(supervisor.folder / "logs" / "journal", 2, supervisor.config, events_at=0)
    assert past.job.state.phase is Phase.END
    assert past.job.state.ending.over


def test_the_root_cause_comes_first(supervisor: Supervisor) -> None:
    with supervisor.channel() as channel:
        agent = Agent(channel, supervisor.token, "node0")
        _run(agent)
        agent.say(messages.RankExited(generation=1, rank=0, pid=77, exit_code=1, error="Traceback\nValueError: x"))
        agent.hears(messages.Stop)
        until(lambda: supervisor.err, _TIMEOUT_S, "the cause is shown while the agents stop")
        agent.say(messages.Stopped())
        assert supervisor.wait() == 1
    assert supervisor.err == "rank 0 on node0 failed: exit code 1\nTraceback\nValueError: x\n"


def test_a_closed_stream_is_a_lost_node_at_once(supervisor: Supervisor) -> None:
    with supervisor.channel() as channel:
        agent = Agent(channel, supervisor.token, "node0")
        _run(agent)
        until(lambda: "started" in supervisor.events(), _TIMEOUT_S, "the job runs")
        agent.hang_up()
        assert supervisor.wait() == 1
    assert supervisor.err == "node0 lost: its stream was closed\n"


def test_the_older_stream_of_a_node_loses(supervisor: Supervisor) -> None:
    with supervisor.channel() as channel, supervisor.channel() as second:
        older = Agent(channel, supervisor.token, "node0")
        older.hears(messages.OpenStore)
        newer = Agent(second, supervisor.token, "node0")
        newer.hears(messages.Welcome)
        older.hears_the_end()
        older.say(messages.StoreOpened(generation=1, host="old", port=1))
        newer.hears(messages.OpenStore)
        supervisor.process.send_signal(signal.SIGTERM)
        newer.hears(messages.Stop)
        newer.say(messages.Stopped())
        assert supervisor.wait() == 143


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_stop_the_job(supervisor: Supervisor, number: signal.Signals, exit_code: int) -> None:
    with supervisor.channel() as channel:
        agent = Agent(channel, supervisor.token, "node0")
        agent.hears(messages.Welcome)
        supervisor.process.send_signal(number)
        agent.hears(messages.Stop)
        agent.say(messages.Stopped())
        assert supervisor.wait() == exit_code
    assert json.loads(supervisor.summary.read_text())["exit_code"] == exit_code


def test_status_events_inject_and_stop(supervisor: Supervisor) -> None:
    metadata = ((TOKEN_KEY, supervisor.token),)
    with supervisor.channel() as channel:
        agent = Agent(channel, supervisor.token, "node0")
        _run(agent)
        until(lambda: "started" in supervisor.events(), _TIMEOUT_S, "the job runs")
        stub = status_pb2_grpc.StatusStub(channel)
        status = convert.decode(stub.GetStatus(convert.encode(status_messages.StatusRequest()), metadata=metadata))
        assert (status.phase, status.generation, status.nodes[0].node_id) == ("run", 1, "node0")
        assert status.nodes[0].ranks[0].pid == 77

        request = status_messages.InjectRequest(kind="kill-rank", target=5, step=3)
        assert convert.decode(stub.Inject(convert.encode(request), metadata=metadata)).error.startswith("there is no rank 5")
        request = status_messages.InjectRequest(kind="kill-rank", target=0, step=3)
        assert convert.decode(stub.Inject(convert.encode(request), metadata=metadata)).error == ""
        assert agent.hears(messages.Inject).step == 3

        drain = status_messages.DrainRequest(node="node0")
        assert "no deadpool.join()" in convert.decode(stub.Drain(convert.encode(drain), metadata=metadata)).error
        gone = status_messages.DrainRequest(node="node7", reason="its manager says so", gone=True)
        assert convert.decode(stub.Drain(convert.encode(gone), metadata=metadata)).error == "node7 is not connected"

        lines = stub.Events(convert.encode(status_messages.EventsRequest(follow=True)), metadata=metadata, timeout=_TIMEOUT_S)
        first = next(lines)  # it follows before the job ends
        stub.Stop(convert.encode(status_messages.StopRequest(reason="enough")), metadata=metadata)
        assert agent.hears(messages.Stop).reason == "enough"
        agent.say(messages.Stopped())
        names = [json.loads(line.json)["event"] for line in (first, *lines)]
        assert names == ["node_joined", "generation", "started", "injection_armed", "job_ended"]
        assert supervisor.wait() == 143


def test_strangers_change_nothing(supervisor: Supervisor) -> None:
    with supervisor.channel() as channel:
        for metadata in ((), ((TOKEN_KEY, "wrong"),), ((TOKEN_KEY, supervisor.token[:-1]),)):
            stub = status_pb2_grpc.StatusStub(channel)
            with pytest.raises(grpc.RpcError) as refusal:
                stub.GetStatus(convert.encode(status_messages.StatusRequest()), metadata=metadata, timeout=_TIMEOUT_S)
            assert cast(grpc.Call, refusal.value).code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError) as refusal:
                Agent(channel, "wrong", "node0").hears(messages.Welcome)
            assert cast(grpc.Call, refusal.value).code() is grpc.StatusCode.UNAUTHENTICATED
        assert supervisor.err.count("refused") == 1

        host, port = supervisor.endpoint.split(":")
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as garbage:
            garbage.sendall(os.urandom(4096))
            _drain(garbage)
        nobody = agent_pb2_grpc.SupervisorStub(channel)
        with pytest.raises(grpc.RpcError) as refusal:
            list(nobody.Attend(iter([agent_pb2.AgentMessage()]), metadata=((TOKEN_KEY, supervisor.token),)))
        assert cast(grpc.Call, refusal.value).code() is grpc.StatusCode.INVALID_ARGUMENT

        agent = Agent(channel, supervisor.token, "node0")
        _run(agent)
        agent.say(messages.RankExited(generation=1, rank=0, pid=77, exit_code=0))
        agent.hears(messages.Stop)
        agent.say(messages.Stopped())
        assert supervisor.wait() == 0


def _drain(connection: socket.socket) -> None:
    """Reads until the other side closes or resets."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return


def test_port_that_is_taken_is_a_usage_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        supervisor = Supervisor(tmp_path)
        supervisor.start("--port", str(taken.getsockname()[1]))
        assert supervisor.wait() == 2
    assert "cannot listen at" in supervisor.err
    assert not (tmp_path / "endpoint.json").exists()


@pytest.mark.parametrize("what", ["metrics", "page"])
def test_what_nobody_can_be_shown_ends_no_job_but_at_its_start(tmp_path: Path, what: str) -> None:
    """The supervisor's second term may be on another machine, where somebody else has the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        page = ["--dashboard", f"127.0.0.1:{port}"] if what == "page" else []
        supervisor = Supervisor(tmp_path, metrics_port=port if what == "metrics" else None)
        supervisor.start(*page)
        assert supervisor.wait() == 2
        assert f"{port}: cannot listen there, choose another" in supervisor.err
        assert not (tmp_path / "endpoint.json").exists()
        supervisor.start(*page)
        with supervisor.channel() as channel:
            Agent(channel, supervisor.token, "node0", incarnation=1)
        assert "the job goes on without" in supervisor.err
        supervisor.process.terminate()
        supervisor.wait()


def test_folder_without_a_job_is_a_usage_error(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    (tmp_path / "job.json").unlink()
    supervisor.start()
    assert supervisor.wait() == 2
    assert supervisor.err.count("\n") == 1
