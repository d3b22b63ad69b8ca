"""A hanging rank seen from its agent; an agent that a person starts for a running job."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from agents import RANK_SIDE, TIMEOUT_S, Node, node_of
from launching import until

from deadpool.proto.messages import CallReport, GroupCall, Hello, RankCalls, RankJoined, ReportCalls

STUCK = (
    RANK_SIDE
    + """
import threading
from deadpool.trainer_hooks.stacks import offer_stacks

def stuck_here():
    threading.Event().wait()

def runs_on():
    threading.Event().wait()

threading.Thread(target=runs_on, daemon=True).start()

role = hear(m.Role)
record(role.rank, generation=1, step=4, commit_step=3)
folder = Path(os.environ["DEADPOOL_VAULT_DIR"])
writer = CallRecord(record_path(folder, role.rank), create=False)
row = writer.add_group("dp")
writer.entered(row, b"allreduce", 17)
writer.completed(row, 16)
offer_stacks(folder)
speak(m.RankJoined(generation=role.generation, rank=role.rank, pid=os.getpid()))
stuck_here()
"""
)


def reported(node: Node, *ranks: int) -> tuple[RankCalls, ...]:
    """Returns what the agent reports of all its ranks, once these have had the time to write their stacks."""

    def answered() -> tuple[RankCalls, ...] | None:
        node.send(ReportCalls(generation=1))
        found = node.expect(CallReport).ranks
        return found if all(found[rank].stacks for rank in ranks) else None

    return until(answered, TIMEOUT_S, f"ranks {ranks} write their stacks") or ()


def test_it_reports_calls_and_saves_stacks(tmp_path: Path) -> None:
    with node_of(tmp_path, STUCK, nproc_per_node=2) as node:
        node.start_agent()
        node.start_ranks(0, 1)
        pids = {joined.rank: joined.pid for joined in [node.expect(RankJoined), node.expect(RankJoined)]}
        os.kill(pids[1], signal.SIGSTOP)
        until(lambda: psutil.Process(pids[1]).status() == psutil.STATUS_STOPPED, TIMEOUT_S, "rank 1 is stopped")
        moving, stopped = reported(node, 0)
        assert moving.groups == (GroupCall(group="dp", operation="allreduce", entered=17, completed=16),)
        assert (moving.rank, moving.pid, moving.step, moving.stopped) == (0, pids[0], 4, False)
        assert "in stuck_here" in Path(moving.stacks).read_text()
        assert "in runs_on" not in Path(moving.stacks).read_text()  # its frames cannot be read safely while it runs
        assert Path(moving.stacks).parent == node.log_dir / "node0"
        assert (stopped.stacks, stopped.stopped, stopped.groups) == ("", True, moving.groups)
        os.kill(pids[1], signal.SIGCONT)
        both = reported(node, 0, 1)  # nothing was harmed by being looked at
        assert all("in stuck_here" in Path(each.stacks).read_text() for each in both)


def test_an_agent_started_by_hand_finds_the_job_and_joins_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with node_of(tmp_path, STUCK) as node:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        (tmp_path / "deadpool").mkdir()
        (tmp_path / "deadpool" / "mine").symlink_to(node.job_dir)
        command = [sys.executable, "-P", "-m", "deadpool.agent.main", "--job"]
        agent = subprocess.Popen(
            [*command, "mine", "--node-id", "new"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        node.agents.append(agent)
        hello = node.supervisor.expect_any(Hello, node_id="new")
        assert isinstance(hello, Hello)
        assert (hello.hint, hello.pid) == (-1, agent.pid)
        assert hello.incarnation > 0
        other = subprocess.run([*command, "other"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert other.returncode == 2
        assert "--job other: no such job runs here; running: mine" in other.stderr
