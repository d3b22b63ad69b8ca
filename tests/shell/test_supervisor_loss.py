"""The supervisor's process is lost, superseded, or its disk is full: the job's conversation goes on, as real processes."""

import json
import os
import queue
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from launching import until

from deadpool.proto import convert, messages
from deadpool.proto.config import JobConfig, to_json
from deadpool.proto.generated import agent_pb2, agent_pb2_grpc
from deadpool.proto.messages import AgentMessage, Order
from deadpool.proto.secret import TOKEN_KEY, make_token, write_private
from deadpool.proto.terms import SUPERSEDED, claim_term
from deadpool.proto.version import own_version

_TIMEOUT_S = 60.0
PROGRESS = messages.RankProgress(rank=0, pid=77, step=-1, commit_step=-1, steps_done=0, exposed_stall_s=0.0)


class Agent:
    """One stream of the job's one agent, played by the test. `obeyed`: what it says that it has had."""

    def __init__(self, channel: grpc.Channel, token: str, *, obeyed: int = 0, generation: int = 0) -> None:
        self._said: queue.Queue[agent_pb2.AgentMessage | None] = queue.Queue()
        stub = agent_pb2_grpc.SupervisorStub(channel)
        self.orders = stub.Attend(iter(self._said.get, None), metadata=((TOKEN_KEY, token),), timeout=_TIMEOUT_S)
        hello = messages.Hello(
            node_id="node0",
            hint=0,
            host="127.0.0.1",
            port=1,
            pid=os.getpid(),
            generation=generation,
            obeyed=obeyed,
            conversation=int(generation > 0),  # the only one there is
            version=own_version(),
        )
        self.say(hello)

    def say(self, message: AgentMessage, number: int = 0) -> None:
        self._said.put(convert.encode_agent_message(message, number=number))

    def hears(self) -> tuple[int, int, Order]:
        """Returns (number, heard, order)."""
        wire = next(self.orders)
        return wire.number, wire.heard, convert.decode_order(wire)


# Starts the rest of its arguments as a command that may make no file longer than the first one says.
SHORT_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = JobConfig(
            job_id="t", nnodes=1, nproc_per_node=1, command=("x",), python="python", log_dir=str(folder / "logs"),
            heartbeat_timeout_s=_TIMEOUT_S,  # the agent says no more than the tests have it say
        )  # fmt: skip
        self.journal = folder / "logs" / "journal"
        self.token = make_token()
        (folder / "job.json").write_text(to_json(self.config))
        write_private(folder / "token", self.token)
        self.processes: list[subprocess.Popen[bytes]] = []

    def be_impatient(self) -> None:
        """The next supervisor gives up silent agents soon."""
        (self.folder / "job.json").write_text(to_json(replace(self.config, heartbeat_timeout_s=0.5)))

    def start(self, *, file_bytes: int | None = None) -> subprocess.Popen[bytes]:
        """`file_bytes`: no file of the process may grow beyond that, as if the disk were full."""
        command = [sys.executable, "-m", "deadpool.supervisor.main", "--job-dir", str(self.folder)]
        if file_bytes is not None:
            command = [sys.executable, "-c", SHORT_FILES, str(file_bytes), *command]
        (self.folder / "endpoint.json").unlink(missing_ok=True)
        with (self.folder / "err").open("ab") as err:
            stderr = err if file_bytes is None else subprocess.PIPE
            process = subprocess.Popen([*command, "--summary-json", str(self.folder / "summary.json")], stderr=stderr)
        self.processes.append(process)
        return process

    def channel(self) -> grpc.Channel:
        endpoint = self.folder / "endpoint.json"
        until(lambda: endpoint.exists() or self.processes[-1].poll() is not None, _TIMEOUT_S, "the supervisor listens")
        return grpc.insecure_channel(json.loads(endpoint.read_text())["endpoint"])

    def events(self) -> list[str]:
        path = self.folder / "logs" / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line)["event"] for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for process in job.processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def run(agent: Agent) -> None:
    """Brings a job of one unhooked rank to its run; two orders are numbered, two messages."""
    assert agent.hears()[2].generation == 0  # type: ignore[union-attr]
    number, _, order = agent.hears()
    assert (number, type(order)) == (1, messages.OpenStore)
    agent.say(messages.StoreOpened(generation=1, host="127.0.0.1", port=9), number=1)
    number, heard, order = agent.hears()
    assert (number, heard, type(order)) == (2, 1, messages.StartRanks)
    agent.say(messages.Heartbeat(generation=1, ranks=(PROGRESS,)))


def test_a_killed_supervisor_goes_on_where_it_was(job: Job) -> None:
    job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token)
        run(agent)
        until(lambda: "started" in job.events(), _TIMEOUT_S, "the job runs")
        job.processes[0].kill()
        job.processes[0].wait()
    second = job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token, obeyed=1, generation=1)  # the second order was lost on its way
        number, _, welcome = agent.hears()
        assert isinstance(welcome, messages.Welcome)
        assert (number, welcome.term, welcome.resumed, welcome.heard, welcome.generation) == (0, 2, True, 1, 1)
        number, _, order = agent.hears()
        assert (number, type(order)) == (2, messages.StartRanks)
        exited = messages.RankExited(generation=1, rank=0, pid=77, exit_code=0)
        for _ in range(2):
            agent.say(exited, number=2)
        number, heard, order = agent.hears()
        assert (number, heard, type(order)) == (3, 2, messages.Stop)
        agent.say(messages.Stopped(), number=3)
        assert second.wait(_TIMEOUT_S) == 0
    assert json.loads((job.folder / "summary.json").read_text())["generations"] == 1
    expected = ["node_joined", "generation", "started", "supervisor_started", "agent_back", "rank_exited", "job_ended"]
    assert job.events() == expected


def test_a_superseded_supervisor_gives_no_orders(job: Job) -> None:
    first = job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token)
        run(agent)
        until(lambda: "started" in job.events(), _TIMEOUT_S, "the job runs")
        assert claim_term(job.journal, 2)
        agent.say(messages.RankExited(generation=1, rank=0, pid=77, exit_code=1), number=2)
        assert first.wait(_TIMEOUT_S) == SUPERSEDED
        assert list(agent.orders) == []
    assert not (job.folder / "summary.json").exists()
    assert not (job.journal / "outcome.json").exists()


def test_a_full_disk_ends_nothing_and_loses_nothing(job: Job) -> None:
    """What cannot be written waits, and no agent is told that it was heard; with room again all is as if nothing had been."""
    first = job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token)
        run(agent)
        until(lambda: "started" in job.events(), _TIMEOUT_S, "the job runs")
        size = (job.journal / "journal-1.jsonl").stat().st_size
        resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (size + 9, resource.RLIM_INFINITY))  # half a line more
        agent.say(messages.RankJoined(generation=1, rank=0, pid=77), number=2)
        number, heard, order = agent.hears()
        assert (number, heard, type(order)) == (3, 0, messages.WarmUp)
        assert (job.journal / "journal-1.jsonl").stat().st_size == size
        assert job.err.count("journal-1.jsonl") == 1
        resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        agent.say(messages.RankJoined(generation=1, rank=0, pid=77), number=3)
        until(lambda: "journal_written_again" in job.events(), _TIMEOUT_S, "there is room again")
        assert "journal_unwritable" in job.events()
        first.send_signal(signal.SIGKILL)
        first.wait()
    job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token, obeyed=3, generation=1)
        _, _, welcome = agent.hears()
        assert isinstance(welcome, messages.Welcome)
        assert (welcome.resumed, welcome.heard) == (True, 3)


def test_a_journal_that_could_not_be_kept_ends_the_job_when_it_is_needed(job: Job) -> None:
    first = job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token)
        run(agent)
        until(lambda: "started" in job.events(), _TIMEOUT_S, "the job runs")
        size = (job.journal / "journal-1.jsonl").stat().st_size
        resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        agent.say(messages.RankJoined(generation=1, rank=0, pid=77), number=2)
        assert agent.hears()[0] == 3
        first.kill()
        first.wait()
    second = job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token, obeyed=3, generation=1)
        while not isinstance(agent.hears()[2], messages.Stop):
            pass
        agent.say(messages.Stopped(), number=4)
        assert second.wait(_TIMEOUT_S) == 1
    assert "the journal is behind the job: node0 has obeyed order 3" in job.err


def test_no_room_at_the_start_is_a_usage_error(job: Job) -> None:
    first = job.start(file_bytes=100)
    _, err = first.communicate(timeout=_TIMEOUT_S)
    assert first.returncode == 2
    assert b"journal-1.jsonl: cannot be written" in err


def test_a_disk_that_is_full_at_the_end_does_not_change_how_the_job_ended(job: Job) -> None:
    first = job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token)
        run(agent)
        until(lambda: "started" in job.events(), _TIMEOUT_S, "the job runs")
        resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # nor can it say so on stderr, a file
        agent.say(messages.RankExited(generation=1, rank=0, pid=77, exit_code=0), number=2)
        while not isinstance(agent.hears()[2], messages.Stop):
            pass
        agent.say(messages.Stopped(), number=3)
        assert first.wait(_TIMEOUT_S) == 0
    assert not (job.journal / "outcome.json").exists()


def test_a_supervisor_whose_agents_do_not_come_back_gives_them_up(job: Job) -> None:
    job.start()
    with job.channel() as channel:
        agent = Agent(channel, job.token)
        run(agent)
        until(lambda: "started" in job.events(), _TIMEOUT_S, "the job runs")
        job.processes[0].kill()
        job.processes[0].wait()
    job.be_impatient()
    assert job.start().wait(_TIMEOUT_S) == 1
    assert "node0 lost: silent" in job.err
