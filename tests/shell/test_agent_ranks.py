"""An agent starts ranks, hears of their ends, kills and replaces them; everything real but the supervisor."""

import json
import os
import signal
from pathlib import Path

import psutil
from agents import RANK_SIDE, TIMEOUT_S, lives, node_of, placement
from launching import until

from deadpool.host.text import TEXT_CHARS_MAX
from deadpool.proto.messages import (
    Heartbeat,
    KillRanks,
    OpenStore,
    Quiesce,
    RankExited,
    RankJoined,
    RankPrepared,
    RankResumed,
    Reform,
    Source,
    SourceKind,
    StoreOpened,
    VaultReport,
    WarmUp,
)

PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"


def test_a_rank_has_torchruns_variables_and_its_end_is_reported(tmp_path: Path) -> None:
    with node_of(tmp_path, PRINT_ENVIRONMENT, nproc_per_node=2, max_restarts=4) as node:
        node.start_agent()
        node.start_ranks(0, 1, port=4711, restart_count=2)
        ends = [node.expect(RankExited), node.expect(RankExited)]
        assert sorted(end.rank for end in ends) == [0, 1]
        assert {(end.exit_code, end.signal, end.generation, end.error) for end in ends} == {(0, 0, 1, "")}
        variables = json.loads(node.lines("rank-1-gen1.log", 1)[0])
        expected = {
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": "1",
            "ROLE_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "4711",
            "TORCHELASTIC_RESTART_COUNT": "2",
            "TORCHELASTIC_MAX_RESTARTS": "4",
            "TORCHELASTIC_RUN_ID": node.config.job_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "GLOO_SOCKET_IFNAME": "lo",
            "DEADPOOL_NODE_ID": "node0",
            "DEADPOOL_VAULT_DIR": str(node.vault()),
        }
        assert expected.items() <= variables.items()
        assert "TORCHELASTIC_ERROR_FILE" in variables
        assert "DEADPOOL_STANDIN" not in variables


def test_an_exception_comes_with_its_traceback_and_a_signal_with_its_number(tmp_path: Path) -> None:
    script = """
        import os, signal
        print("last words")
        if os.environ["RANK"] == "0":
            raise ValueError("the third batch is empty")
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    with node_of(tmp_path, script, nproc_per_node=2) as node:
        node.start_agent()
        node.start_ranks(0, 1)
        ends = sorted([node.expect(RankExited), node.expect(RankExited)], key=lambda end: end.rank)
        assert (ends[0].exit_code, ends[0].signal) == (1, 0)
        assert "ValueError: the third batch is empty" in ends[0].error
        assert ends[0].error.count("File ") == 1  # the script's own line, none of ours
        assert "last words" in ends[0].log_tail
        assert (ends[1].exit_code, ends[1].signal) == (128 + signal.SIGSEGV, signal.SIGSEGV)
        assert "last words" in ends[1].log_tail


def test_a_failed_ranks_whole_session_dies_and_its_strays(tmp_path: Path) -> None:
    script = """
        import os, subprocess, sys, time
        child = "import os, sys, time; {}; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", child.format("os.setpgid(0, 0)"), "member"])
        subprocess.Popen([sys.executable, "-c", child.format("os.setsid()"), "stray"])
        while not all(os.path.exists(name) and os.path.getsize(name) for name in ("member", "stray")):
            time.sleep(0.01)
        os._exit(3)
    """
    with node_of(tmp_path, script) as node:
        node.start_agent()
        node.start_ranks(0)
        assert node.expect(RankExited).exit_code == 3
        for name in ("member", "stray"):
            pid = int((tmp_path / name).read_text())
            until(lambda pid=pid: not psutil.pid_exists(pid), TIMEOUT_S, f"{name} {pid} is dead and reaped")  # type: ignore[misc]


def test_ranks_started_afresh_replace_the_old_ones_silently(tmp_path: Path) -> None:
    with node_of(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)") as node:
        node.start_agent()
        node.start_ranks(0, generation=1)
        first = node.expect(Heartbeat, lambda heartbeat: bool(heartbeat.ranks and heartbeat.ranks[0].pid)).ranks[0].pid
        snapshot = node.vault() / "snapshot-0-a"
        snapshot.touch()
        node.start_ranks(0, generation=2)
        second = (
            node.expect(Heartbeat, lambda heartbeat: bool(heartbeat.ranks) and heartbeat.ranks[0].pid not in (0, first))
            .ranks[0]
            .pid
        )
        until(lambda: not psutil.pid_exists(first), TIMEOUT_S, "the first process is gone")
        assert psutil.pid_exists(second)
        assert not snapshot.exists()
        node.start_ranks(0, generation=1)  # late: fenced
        node.send(KillRanks(generation=2, ranks=(0,), reason="test"))
        end = node.expect(RankExited)
        assert (end.pid, end.generation, end.signal) == (second, 2, signal.SIGKILL)
        node.send(KillRanks(generation=3, ranks=(0,), reason="the supervisor did not know yet"))
        assert node.expect(RankExited).generation == 3


def test_stop_ends_even_what_ignores_sigterm_and_removes_the_vault(tmp_path: Path) -> None:
    script = """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
        print("deaf", flush=True)
        time.sleep(600)
    """
    with node_of(tmp_path, script) as node:
        agent = node.start_agent()
        node.start_ranks(0)
        until(lambda: "deaf" in node.log("rank-0-gen1.log"), TIMEOUT_S, "the rank runs")
        assert node.vault().stat().st_mode & 0o777 == 0o700
        node.stop(grace_s=0.2)
        assert agent.wait(TIMEOUT_S) == 0
        assert not node.vault().exists()
        assert not (node.job_dir / "node0.sock").exists()


def test_sigterm_to_the_agent_and_the_death_of_its_parent_end_everything(tmp_path: Path) -> None:
    with node_of(tmp_path, "import time; print('up', flush=True); time.sleep(600)") as node:
        agent = node.start_agent()
        node.start_ranks(0)
        until(lambda: "up" in node.log("rank-0-gen1.log"), TIMEOUT_S, "the rank runs")
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        assert not node.vault().exists()
        assert node.start_agent("node1", 1, "--with-parent", "1").wait(TIMEOUT_S) == 1  # its parent is not pid 1: gone already


def test_a_killed_agent_takes_its_ranks_with_it_and_the_next_one_removes_its_vault(tmp_path: Path) -> None:
    with node_of(tmp_path, "import time; print('up', flush=True); time.sleep(600)") as node:
        agent = node.start_agent()
        node.start_ranks(0)
        pid = node.expect(Heartbeat, lambda heartbeat: bool(heartbeat.ranks and heartbeat.ranks[0].pid)).ranks[0].pid
        agent.kill()
        until(lambda: not lives(pid), TIMEOUT_S, "the rank is dead")
        assert node.vault().exists()
        node.start_agent("node1", 1)
        node.expect(Heartbeat, node_id="node1")
        assert not node.vault().exists()
        assert node.vault("node1").exists()


JOINING = (
    RANK_SIDE
    + """
if os.environ.get("DEADPOOL_STANDIN"):
    assert "RANK" not in os.environ
    print("waiting", flush=True)
role = hear(m.Role)
print("I am", role.rank, role.generation, role.muted, role.hint_step, role.environment["RANK"], flush=True)
speak(m.RankJoined(generation=role.generation, rank=role.rank, pid=os.getpid()))
record(role.rank, generation=role.generation, step=4, commit_step=3, steps_done=4, stall_ns=250_000_000, step_began_ns=1)
if role.muted:
    speak(m.RankPrepared(generation=role.generation, rank=role.rank, live_generation=0, live_step=-1, commit_step=-1))
while True:
    order = hear(m.Quiesce | m.Reform | m.Release)
    print(order, flush=True)
    if isinstance(order, m.Quiesce):
        speak(m.RankPrepared(generation=order.generation, rank=role.rank, live_generation=1, live_step=4, commit_step=3))
    if isinstance(order, m.Reform):
        speak(m.RankResumed(generation=order.generation, rank=role.rank, step=4, at_ns=time.monotonic_ns()))
"""
)


def test_a_recovery_with_a_survivor_and_a_stand_in(tmp_path: Path) -> None:
    with node_of(tmp_path, JOINING, nproc_per_node=2) as node:
        node.start_agent()
        node.start_ranks(0, 1)
        pids = {joined.rank: joined.pid for joined in (node.expect(RankJoined), node.expect(RankJoined))}
        node.send(WarmUp(standins=1))
        heartbeat = node.expect(Heartbeat, lambda heartbeat: heartbeat.standins_ready == 1 and heartbeat.ranks[1].step == 4)
        assert (heartbeat.ranks[1].commit_step, heartbeat.ranks[1].exposed_stall_s, heartbeat.ranks[1].pid) == (3, 0.25, pids[1])

        os.kill(pids[1], signal.SIGKILL)
        end = node.expect(RankExited)
        assert (end.rank, end.generation, end.step, end.commit_step) == (1, 1, 4, 3)
        node.send(Quiesce(generation=2, reason="rank 1 died"))
        node.assign(1, generation=2)
        prepared: list[object] = [node.expect(VaultReport)]
        while sum(isinstance(each, RankPrepared) for each in prepared) < 2:
            prepared.append(node.supervisor.expect_any(VaultReport, RankPrepared, RankJoined))
        node.expect(VaultReport)  # what the vault holds when the last of them is prepared
        assert {(each.rank, each.live_step) for each in prepared if isinstance(each, RankPrepared)} == {(0, 4), (1, -1)}
        assert any(isinstance(each, RankJoined) and each.pid != pids[1] for each in prepared)
        until(
            lambda: "I am 1 2 True 7 1" in node.log("rank-1-gen2.log"),
            TIMEOUT_S,
            "the stand-in has its rank, and its log that name",
        )
        assert "waiting" in node.log("rank-1-gen2.log")

        sources = tuple(Source(rank=rank, kind=SourceKind.LIVE, slot_generation=1) for rank in (0, 1))
        placements = (placement(0), placement(1))
        node.send(
            Reform(
                generation=2, resume_step=4, store_host="h", store_port=5, placements=placements, sources=sources, commit_step=3
            )
        )
        assert {node.expect(RankResumed).rank for _ in range(2)} == {0, 1}
        until(lambda: "placements=(Placement(rank=0" in node.log("rank-0-gen1.log"), TIMEOUT_S, "rank 0 has its Reform")
        node.expect(Heartbeat, lambda heartbeat: heartbeat.standins_ready == 1)  # made anew after the recovery
        node.stop()


def test_a_store_is_served_for_each_generation(tmp_path: Path) -> None:
    with node_of(tmp_path, "pass") as node:
        agent = node.start_agent()
        ports = set()
        for generation in (1, 2, 3):
            node.send(OpenStore(generation=generation))
            opened = node.expect(StoreOpened)
            assert (opened.generation, opened.host) == (generation, "127.0.0.1")
            ports.add(opened.port)
        assert len(ports) == 3
        node.send(OpenStore(generation=3))
        assert node.expect(StoreOpened).port in ports
        node.stop()
        assert agent.wait(TIMEOUT_S) == 0


def test_what_a_rank_says_in_its_last_words_reaches_the_supervisor_whatever_it_is(tmp_path: Path) -> None:
    script = """
    import json, os
    if os.environ["RANK"] == "0":
        raise RuntimeError("cannot decode " + os.fsdecode(b"img_\\xff\\xfe.png") + "x" * 6_000_000)
    if os.environ["RANK"] == "1":
        print("\\x1b[31mno \\udcff", "y" * 50_000, flush=True)
    open(os.environ["TORCHELASTIC_ERROR_FILE"], "wb").write(b'{"message": {"extraInfo": 7, "\\xff')
    os._exit(3)
    """
    with node_of(tmp_path, script, nproc_per_node=3) as node:
        node.start_agent()
        node.start_ranks(0, 1, 2)
        ends = {end.rank: end for end in (node.expect(RankExited) for _ in range(3))}
        assert all(len(text) <= TEXT_CHARS_MAX + 60 for end in ends.values() for text in (end.error, end.log_tail))
        assert "RuntimeError: cannot decode img_\\udcff\\udcfe.pngxxx" in ends[0].error
        assert "\x1b" not in ends[1].log_tail
        assert ends[2].error.startswith('{"message": {"extraInfo": 7')
        node.stop()


def test_a_rank_that_lives_on_without_its_stream_is_killed_unless_its_script_has_ended(tmp_path: Path) -> None:
    script = (
        RANK_SIDE
        + """
role = hear(m.Role)
record(role.rank, generation=1)
if role.rank == 1:
    CallRecord(record_path(Path(os.environ["DEADPOOL_VAULT_DIR"]), 1), create=False).end_script()
_channel.close()
if role.rank == 0:
    time.sleep(600)
time.sleep(5)
"""
    )
    with node_of(tmp_path, script, nproc_per_node=2) as node:
        node.start_agent()
        node.start_ranks(0, 1)
        ends = {end.rank: end for end in (node.expect(RankExited) for _ in range(2))}
        assert (ends[0].signal, ends[0].script_ended) == (9, False)
        assert (ends[1].exit_code, ends[1].script_ended) == (0, True)
        node.stop()
