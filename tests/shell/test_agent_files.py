"""An agent that has used up its open files: its ranks live, it says so, and does what was asked of it once it can."""

import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from agents import RANK_SIDE, TIMEOUT_S, Node, node_of

from deadpool.agent.health.host_pressure import PressureWatch
from deadpool.proto.messages import (
    Heartbeat,
    Hello,
    HostTrouble,
    KillRanks,
    OpenStore,
    Quiesce,
    RankExited,
    RankJoined,
    RankReformed,
    Release,
    StoreOpened,
    VaultReport,
)

TALKING = (
    RANK_SIDE
    + """
role = hear(m.Role)
speak(m.RankJoined(generation=role.generation, rank=role.rank, pid=os.getpid()))
while True:
    order = decode_rank_order(next(_stream))
    if isinstance(order, m.Release):
        speak(m.RankReformed(generation=order.generation, rank=role.rank))
"""
)


@contextmanager
def exhausted(pid: int) -> Iterator[None]:
    """The process may not open any file more."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def troubled(node: Node) -> HostTrouble:
    return node.expect(HostTrouble, lambda trouble: trouble.kind == "files")


def test_its_ranks_live_it_says_so_and_goes_on_when_there_are_some_again(tmp_path: Path) -> None:
    with node_of(tmp_path, TALKING, nproc_per_node=2) as node:
        agent = node.start_agent()
        hello = node.expect(Hello)
        node.start_ranks(0, 1)
        pids = {joined.rank: joined.pid for joined in (node.expect(RankJoined), node.expect(RankJoined))}
        with exhausted(agent.pid):
            assert "100% of the allowed open files" in troubled(node).text
            with socket.create_connection(("127.0.0.1", hello.port), TIMEOUT_S):  # a vault that nobody can enter now
                node.expect(Heartbeat, lambda heartbeat: {rank.pid for rank in heartbeat.ranks} == set(pids.values()))
            node.send(Release(generation=1, step=9))
            assert {node.expect(RankReformed).rank for _ in pids} == {0, 1}
            os.kill(pids[1], signal.SIGKILL)
            assert node.expect(RankExited).rank == 1
            node.send(Quiesce(generation=2, reason="rank 1 died"))
            node.send(OpenStore(generation=2))
            node.assign(1, generation=2)
            node.expect(Heartbeat, lambda heartbeat: heartbeat.generation == 2)
            assert agent.poll() is None
        assert {type(node.supervisor.expect_any(VaultReport, StoreOpened, HostTrouble, RankJoined)) for _ in range(4)} == {
            VaultReport,
            StoreOpened,
            HostTrouble,
            RankJoined,
        }
        assert psutil.pid_exists(pids[0])
        with socket.create_connection(("127.0.0.1", hello.port), TIMEOUT_S) as connection:
            connection.settimeout(TIMEOUT_S)
            assert connection.recv(1)  # the vault's server asks who that is
        node.stop()


def test_a_process_that_waits_for_descriptors_can_be_killed(tmp_path: Path) -> None:
    with node_of(tmp_path, TALKING) as node:
        agent = node.start_agent()
        node.expect(Heartbeat)
        with exhausted(agent.pid):
            troubled(node)
            node.start_ranks(0)
            node.send(KillRanks(generation=1, ranks=(0,), reason="the test says so"))
            exited = node.expect(RankExited)
            assert (exited.rank, exited.pid, exited.signal) == (0, 0, signal.SIGKILL)
        assert not troubled(node).text
        node.start_ranks(0, generation=2)
        assert node.expect(RankJoined).generation == 2
        node.stop()


def test_the_agent_allows_itself_all_it_can_and_its_ranks_what_it_was_allowed(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with node_of(tmp_path, "import os, resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))") as node:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        try:
            agent = node.start_agent()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        node.start_ranks(0)
        assert node.expect(RankExited).exit_code == 0
        assert node.lines("rank-0-gen1.log", 1) == [str((512, before[1]))]
        assert resource.prlimit(agent.pid, resource.RLIMIT_NOFILE) == (before[1], before[1])
        node.stop()


def test_the_watch_needs_a_descriptor_to_look_with() -> None:
    watch, before = PressureWatch(), resource.getrlimit(resource.RLIMIT_NOFILE)
    watch.look(Path("/tmp"))
    with exhausted(os.getpid()):
        said = watch.look(Path("/tmp"))
    assert [trouble.kind for trouble in said] == ["files"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    assert [trouble.text for trouble in watch.look(Path("/tmp")) if trouble.kind == "files"] == [""]
