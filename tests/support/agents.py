"""Real agents for tests, under a supervisor that only listens and sends what the test says; and the rank's side of a script."""

import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import psutil
from launching import until

from deadpool.proto.config import Entry, JobConfig, to_json
from deadpool.proto.convert import decode_agent_message, encode_order
from deadpool.proto.generated import agent_pb2 as pb
from deadpool.proto.generated.agent_pb2_grpc import SupervisorServicer, add_SupervisorServicer_to_server
from deadpool.proto.messages import (
    AgentMessage,
    Assign,
    Heartbeat,
    Hello,
    Order,
    Placement,
    RankExited,
    RanksSaid,
    StartRanks,
    Stop,
    Stopped,
    Welcome,
)
from deadpool.proto.secret import TOKEN_KEY, make_token, token_matches, write_private
from deadpool.proto.version import own_version

M = TypeVar("M")
TIMEOUT_S = 60.0  # nothing is expected to take long, but a busy machine may

# The rank's side, for scripts: `speak(message)` and `hear(kind)` over the agent's socket.
RANK_SIDE = """
import os, queue, sys, time
from pathlib import Path
import grpc
from deadpool.proto import messages as m
from deadpool.proto.call_record import CallRecord, Head, record_path
from deadpool.proto.convert import decode_rank_order, encode_rank_message
from deadpool.proto.generated.rank_pb2_grpc import AgentStub
from deadpool.proto.secret import TOKEN_KEY, read_private
from deadpool.proto.version import own_version

_outbox = queue.Queue()
token = read_private(Path(os.environ["DEADPOOL_JOB_DIR"], "token"))
_channel = grpc.insecure_channel("unix:" + os.environ["DEADPOOL_SOCKET"])
_stream = AgentStub(_channel).Serve(iter(_outbox.get, None), metadata=((TOKEN_KEY, token),))

def speak(message):
    _outbox.put(encode_rank_message(message))

def hear(kind):
    order = decode_rank_order(next(_stream))
    assert isinstance(order, kind), order
    return order

def record(rank, **head):
    CallRecord(record_path(Path(os.environ["DEADPOOL_VAULT_DIR"]), rank), create=True).write_head(m_head(**head))

def m_head(**head):
    return Head(pid=os.getpid(), **head)

speak(m.Register(pid=os.getpid(), version=own_version()))
"""


class Supervisor(SupervisorServicer):
    """Answers each Hello with Welcome. `send` and `expect` speak for one agent, by its node's name."""

    def __init__(self, config: JobConfig, token: str, generation: int = 0) -> None:
        self._config = config
        self._token = token
        self._orders: dict[str, queue.Queue[Order | None]] = {}
        self._received: dict[str, queue.Queue[AgentMessage]] = {}
        self.generation = generation
        self.refusal = ""  # of every agent that says Hello
        self._server = grpc.server(ThreadPoolExecutor(16))
        add_SupervisorServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{port}"
        self._server.start()

    def Attend(self, requests: Iterator[pb.AgentMessage], context: grpc.ServicerContext) -> Iterator[pb.Order]:
        if not token_matches(self._token, dict(context.invocation_metadata()).get(TOKEN_KEY)):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "token")
        hello = decode_agent_message(next(requests))
        assert isinstance(hello, Hello)
        assert hello.version == own_version()
        if self.refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)
        orders: queue.Queue[Order | None] = queue.Queue()
        resumed = 0 < hello.generation == self.generation  # as a supervisor that knows this agent
        orders.put(Welcome(config_json=to_json(self._config), generation=self.generation, resumed=resumed))
        self._orders[hello.node_id] = orders  # from now on `send` may add to it
        received = self._received.setdefault(hello.node_id, queue.Queue())
        received.put(hello)

        def read() -> None:
            try:
                for wire in requests:
                    message = decode_agent_message(wire)
                    for each in message.words() if isinstance(message, RanksSaid) else (message,):
                        received.put(each)
            except grpc.RpcError:
                pass  # the agent was killed
            finally:
                orders.put(None)

        with ThreadPoolExecutor(1) as reader:
            reader.submit(read)
            while (order := orders.get()) is not None:
                yield encode_order(order)

    def send(self, order: Order, node_id: str = "node0") -> None:
        until(lambda: node_id in self._orders, TIMEOUT_S, f"{node_id} has come")
        self._orders[node_id].put(order)

    def expect(
        self,
        kind: type[M],
        matching: Callable[[M], bool] = lambda _: True,
        *,
        node_id: str = "node0",
        timeout_s: float = TIMEOUT_S,
    ) -> M:
        """Returns the next such message; Hello and heartbeats are passed over, anything else in between is an error."""
        while True:
            message = self.expect_any(Hello, Heartbeat, kind, node_id=node_id, timeout_s=timeout_s)
            if isinstance(message, kind) and matching(message):
                return message

    def expect_any(self, *kinds: type, node_id: str = "node0", timeout_s: float = TIMEOUT_S) -> object:
        """Returns the next message, which must be one of these, but passes over Hello and heartbeats that are not asked for."""
        until(lambda: node_id in self._received, timeout_s, f"{node_id} has come")
        while True:
            try:
                message = self._received[node_id].get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"none of {kinds} within {timeout_s} s") from None
            if isinstance(message, kinds):
                return message
            assert isinstance(message, Hello | Heartbeat), message

    def close(self) -> None:
        for orders in self._orders.values():
            orders.put(None)
        self._server.stop(0).wait()


class Node:
    """A job's folder, a supervisor, and the agents that the test starts."""

    def __init__(self, folder: Path, script: str, *, arguments: tuple[str, ...] = (), **config: Any) -> None:
        self.folder = folder
        self.job_dir = folder / "job"
        self.job_dir.mkdir(mode=0o700)
        self.log_dir = folder / "logs"
        self.script = folder / "script.py"
        self.script.write_text(textwrap.dedent(script))
        settings: dict[str, Any] = {
            "job_id": f"t{os.getpid()}-{folder.name}", "nnodes": 1, "nproc_per_node": 1, "python": sys.executable,
            "command": (str(self.script), *arguments), "log_dir": str(self.log_dir), "heartbeat_interval_s": 0.1,
            "entry": Entry.SCRIPT,
        }  # fmt: skip
        self.config = JobConfig(**settings | config)
        self.token = make_token()
        write_private(self.job_dir / "token", self.token)
        self.new_supervisor()
        self.agents: list[subprocess.Popen[str]] = []

    def new_supervisor(self, generation: int = 0) -> None:
        """Starts one, after the first one's end again; agents find it by endpoint.json. `generation`: of the job it knows."""
        self.supervisor = Supervisor(self.config, self.token, generation)
        self.expect = self.supervisor.expect
        self.send = self.supervisor.send
        endpoint = {"job_id": self.config.job_id, "endpoint": self.supervisor.endpoint, "pid": os.getpid()}
        write_private(self.job_dir / "endpoint.json", json.dumps(endpoint))

    def vault(self, node_id: str = "node0") -> Path:
        return Path("/dev/shm", f"deadpool-{self.config.job_id}-{node_id}")

    def start_agent(self, node_id: str = "node0", hint: int = 0, *more: str) -> subprocess.Popen[str]:
        agent = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "deadpool.agent.main", "--job-dir", str(self.job_dir), "--node-id", node_id,
                "--hint", str(hint), *more,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=self.folder,
        )  # fmt: skip
        self.agents.append(agent)
        return agent

    def start_ranks(self, *ranks: int, generation: int = 1, port: int = 1, restart_count: int = 0) -> None:
        self.send(
            StartRanks(
                generation=generation,
                world_size=self.config.world_size,
                placements=tuple(placement(rank) for rank in ranks),
                store_host="127.0.0.1",
                store_port=port,
                master_node_count=self.config.nnodes,
                restart_count=restart_count,
            )
        )

    def assign(self, *ranks: int, generation: int, hint_step: int = 7) -> None:
        self.send(
            Assign(
                generation=generation,
                world_size=self.config.world_size,
                placements=tuple(placement(rank) for rank in ranks),
                hint_step=hint_step,
                master_node_count=self.config.nnodes,
                restart_count=0,
            )
        )

    def stop(self, node_id: str = "node0", grace_s: float = 2.0) -> None:
        self.send(Stop(reason="the test is over", grace_s=grace_s), node_id)
        while not isinstance(self.supervisor.expect_any(Stopped, RankExited, node_id=node_id), Stopped):
            pass

    def log(self, name: str, node_id: str = "node0") -> str:
        path = self.log_dir / node_id / name
        return path.read_text() if path.exists() else ""

    def lines(self, name: str, count: int) -> list[str]:
        """Returns what a process has printed, once it has `count` lines: the agent writes them down later than it sends news."""
        until(lambda: len(self.log(name).splitlines()) >= count, TIMEOUT_S, f"{count} lines are in {name}")
        return self.log(name).splitlines()

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            out, err = agent.communicate(timeout=TIMEOUT_S)
            print(f"--- agent's stdout\n{out}\n--- agent's stderr\n{err}")
        self.supervisor.close()


def placement(rank: int, node_id: str = "node0") -> Placement:
    return Placement(rank=rank, local_rank=rank, node_id=node_id, node_rank=0)


def lives(pid: int) -> bool:
    """Returns whether the process runs: it is there, and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def node_of(folder: Path, script: str, **config: Any) -> Iterator[Node]:
    node = Node(folder, script, **config)
    try:
        yield node
    finally:
        node.close()
