"""An agent as a node: injected failures, the supervisor's absence, the vault that its ranks ask for, strangers at its socket."""

import os
import signal
import time
from pathlib import Path

import grpc
import psutil
import pytest
from agents import RANK_SIDE, TIMEOUT_S, lives, node_of
from launching import until

from deadpool.proto.convert import encode_rank_message
from deadpool.proto.generated.rank_pb2_grpc import AgentStub
from deadpool.proto.messages import (
    NO_STEP,
    CheckpointWritten,
    Heartbeat,
    Hello,
    Inject,
    InjectionAck,
    InjectionDue,
    OpenStore,
    RankExited,
    RankJoined,
    RankReformed,
    Register,
    Release,
    Stopped,
    StoreOpened,
    Version,
    WarmUp,
)
from deadpool.proto.secret import TOKEN_KEY
from deadpool.proto.version import own_version

STEPPING = (
    RANK_SIDE
    + """
role = hear(m.Role)
speak(m.RankJoined(generation=role.generation, rank=role.rank, pid=os.getpid()))
head = dict(generation=1, typical_step_ns=40_000_000, commit_step=-1)
record(role.rank, step=0, step_began_ns=time.monotonic_ns(), **head)
writer = CallRecord(record_path(Path(os.environ["DEADPOOL_VAULT_DIR"]), role.rank), create=False)
for step in range(100_000):
    writer.write_head(m_head(step=step, step_began_ns=time.monotonic_ns(), **head))
    time.sleep(0.04)
"""
)


def test_kill_rank_strikes_in_the_middle_of_its_step(tmp_path: Path) -> None:
    with node_of(tmp_path, STEPPING, nproc_per_node=2) as node:
        node.start_agent()
        began_ns = time.monotonic_ns()
        node.send(Inject(injection_id=1, kind="kill-rank", target=1, step=3))
        node.start_ranks(0, 1)
        said = [node.supervisor.expect_any(RankJoined, InjectionDue) for _ in range(3)]  # rank 0 may be the slower one
        (due,) = [each for each in said if isinstance(each, InjectionDue)]
        assert due.injection_id == 1
        assert began_ns <= due.at_ns <= time.monotonic_ns()
        node.send(InjectionAck(injection_id=1))
        end = node.expect(RankExited)
        assert (end.rank, end.signal) == (1, signal.SIGKILL)
        assert end.step >= 3
        node.send(Inject(injection_id=2, kind="kill-rank", target=0, step=NO_STEP))
        assert node.expect(InjectionDue).injection_id == 2
        node.send(InjectionAck(injection_id=2))
        assert node.expect(RankExited).rank == 0


def test_kill_node_leaves_nothing_of_the_node_but_its_vault(tmp_path: Path) -> None:
    with node_of(tmp_path, STEPPING, nproc_per_node=2) as node:
        agent = node.start_agent()
        node.send(OpenStore(generation=1))
        node.expect(StoreOpened)
        node.start_ranks(0, 1)
        for _ in range(2):
            node.expect(RankJoined)
        node.send(WarmUp(standins=1))
        node.expect(Heartbeat, lambda heartbeat: heartbeat.standins_ready == 1)
        pids = [child.pid for child in psutil.Process(agent.pid).children(recursive=True)]
        assert len(pids) == 5  # two ranks, a stand-in, the warm process, the store
        node.send(Inject(injection_id=1, kind="kill-node", target=0, step=5))
        node.expect(InjectionDue)
        node.send(InjectionAck(injection_id=1))
        assert agent.wait(TIMEOUT_S) == -signal.SIGKILL
        until(lambda: not any(lives(pid) for pid in pids), TIMEOUT_S, "all of the node's processes are dead")
        node.start_agent("node1", 1)
        node.expect(Heartbeat, node_id="node1")
        assert not node.vault().exists()


def test_the_ranks_go_on_without_a_supervisor_and_the_next_one_hears_what_happened(tmp_path: Path) -> None:
    with node_of(tmp_path, "import time; time.sleep(600)", nproc_per_node=2) as node:
        node.start_agent()
        node.start_ranks(0, 1)
        heartbeat = node.expect(
            Heartbeat, lambda heartbeat: len(heartbeat.ranks) == 2 and all(rank.pid for rank in heartbeat.ranks)
        )
        node.supervisor.close()
        os.kill(heartbeat.ranks[1].pid, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(heartbeat.ranks[1].pid), TIMEOUT_S, "the rank is dead and reaped")
        node.new_supervisor(generation=1)
        assert node.expect(Hello).generation == 1
        assert node.expect(RankExited).rank == 1
        again = node.expect(Heartbeat)
        assert [rank.pid for rank in again.ranks] == [heartbeat.ranks[0].pid]
        node.stop()


def test_the_space_that_a_rank_needs_is_made_or_refused(tmp_path: Path) -> None:
    script = (
        RANK_SIDE
        + """
        role = hear(m.Role)
        speak(m.Reserve(rank=0, snapshot_bytes=1 << 20, replica_bytes=4096))
        print(hear(m.Reserved), sorted(os.listdir(os.environ["DEADPOOL_VAULT_DIR"])))
        speak(m.Reserve(rank=0, snapshot_bytes=1 << 50, replica_bytes=1 << 40))
        print(hear(m.Reserved).error)
    """.replace("\n        ", "\n")
    )
    with node_of(tmp_path, script) as node:
        node.start_agent()
        node.start_ranks(0)
        assert node.expect(RankExited).exit_code == 0
        first, second = node.lines("rank-0-gen1.log", 2)
        assert first == "Reserved(error='') ['holder', 'lock', 'snapshot-0-a', 'snapshot-0-b']"
        assert f"needs {(2 << 50) + (2 << 40) + (64 << 10)} bytes" in second
        assert "are free" in second


def test_strangers_at_the_socket_are_refused(tmp_path: Path) -> None:
    with node_of(tmp_path, "import time; time.sleep(600)") as node:
        node.start_agent()
        node.start_ranks(0)
        node.expect(Heartbeat, lambda heartbeat: bool(heartbeat.ranks and heartbeat.ranks[0].pid))
        socket = node.job_dir / "node0.sock"
        assert socket.stat().st_mode & 0o777 == 0o600
        older = Version(package="0.0.9", protocol=0)
        for token, version, code, reason in (
            ("wrong", own_version(), grpc.StatusCode.UNAUTHENTICATED, "token"),
            (node.token, own_version(), grpc.StatusCode.NOT_FOUND, "no rank of this node"),
            (node.token, older, grpc.StatusCode.FAILED_PRECONDITION, "has DeadPool 0.0.9 (protocol 0), here is"),
        ):
            register = encode_rank_message(Register(pid=os.getpid(), version=version))
            with grpc.insecure_channel(f"unix:{socket}") as channel:
                stream = AgentStub(channel).Serve(iter([register]), metadata=((TOKEN_KEY, token),), timeout=TIMEOUT_S)
                with pytest.raises(grpc.RpcError) as refused:
                    next(stream)
                assert refused.value.code() is code
                assert reason in (refused.value.details() or "")
        node.stop()


def test_an_agent_that_is_refused_for_good_ends_with_one_line(tmp_path: Path) -> None:
    with node_of(tmp_path, "pass") as node:
        node.supervisor.refusal = "the agent of node0 has DeadPool 1.0 (protocol 1), here is 2.0 (protocol 2)"
        agent = node.start_agent()
        _, err = agent.communicate(timeout=TIMEOUT_S)
        assert agent.returncode == 2
        assert err == f"deadpool-agent[node0]: {node.supervisor.endpoint}: {node.supervisor.refusal}\n"


def test_an_order_reaches_a_rank_and_its_answer_the_supervisor(tmp_path: Path) -> None:
    """The time is printed and not checked: a busy machine would miss any bound."""
    script = (
        RANK_SIDE
        + """
role = hear(m.Role)
speak(m.RankJoined(generation=1, rank=0, pid=os.getpid()))
while True:
    order = hear(m.Release)
    speak(m.RankReformed(generation=order.generation, rank=0))
"""
    )
    with node_of(tmp_path, script) as node:
        node.start_agent()
        node.start_ranks(0)
        node.expect(RankJoined)
        times_s = []
        for generation in range(2, 52):
            began_s = time.monotonic()
            node.send(Release(generation=generation, step=9))
            assert node.expect(RankReformed).generation == generation
            times_s.append(time.monotonic() - began_s)
        print(f"there and back: median {sorted(times_s)[25] * 1e3:.2f} ms")


def test_the_checkpoint_writer_is_there_with_the_ranks_hears_no_signal_and_is_replaced_when_it_dies(tmp_path: Path) -> None:
    def status(pid: int) -> dict[str, str]:
        return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())

    def writers(agent: int) -> list[psutil.Process]:
        """Beside it there are the warm process, which is older, if there is one yet, and the rank, which hears signals."""
        children = sorted(psutil.Process(agent).children(), key=lambda child: child.create_time())[1:]
        return [child for child in children if int(status(child.pid)["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1]

    with node_of(tmp_path, "import time; time.sleep(600)", checkpoint_dir=str(tmp_path / "checkpoints")) as node:
        agent = node.start_agent()
        node.start_ranks(0)
        first, *_ = until(lambda: writers(agent.pid), TIMEOUT_S, "it is there")  # a rank that is just forked hears none either
        ignored = int(status(first.pid)["SigIgn"], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            assert ignored >> (number - 1) & 1, number
        first.kill()
        assert "starting it again" in node.expect(CheckpointWritten).error
        until(lambda: writers(agent.pid), TIMEOUT_S, "the next one is there")
        agent.send_signal(signal.SIGTERM)
        node.expect(Stopped)
        assert agent.wait(TIMEOUT_S) == 128 + signal.SIGTERM
