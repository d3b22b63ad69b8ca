"""Scripts that know nothing of deadpool run as under torchrun: environment, arguments, exit codes, restarts of all ranks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import Launcher, until

pytestmark = pytest.mark.e2e

DUMP = """
import json, os, sys
from pathlib import Path
from neighbour import WORD  # the script's folder is on sys.path
names = [name for name in os.environ if name.startswith(("TORCH", "GROUP_", "ROLE_", "MASTER_", "OMP_")) or "RANK" in name
         or "WORLD_SIZE" in name]
seen = {"environment": {name: os.environ[name] for name in names}, "argv": sys.argv, "cwd": os.getcwd(), "word": WORD}
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(seen | {"name": __name__, "path": sys.path[0]}))
print("hello from", os.environ["RANK"], flush=True)
"""

# Trains nothing, but needs all ranks: sums their numbers with Gloo. Rank 1 fails in its first life.
SUM = """
import os, signal, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
attempt, how = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[1]
if dist.get_rank() == 1 and attempt < int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else sys.exit(3)
number = torch.tensor([dist.get_rank()])
dist.all_reduce(number)
print("attempt", attempt, "sum", number.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.py"
    path.write_text(DUMP)
    (tmp_path / "neighbour.py").write_text("WORD = 'found'\n")
    return path


@pytest.fixture
def total(tmp_path: Path) -> Path:
    path = tmp_path / "total.py"
    path.write_text(SUM)
    return path


def seen_by(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(path.name): json.loads(path.read_text()) for path in folder.iterdir()}


def test_ranks_see_what_they_see_under_torchrun(launcher: Launcher, dump: Path, tmp_path: Path) -> None:
    """The values differ where they must: ports, run ids, files, and what names the node's address."""
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
    shape = ["--standalone", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "2"]
    outcome = launcher.run(*shape, str(dump), str(tmp_path / "ours"), "--x", "y z")
    assert outcome.exit_code == 0, outcome.err
    torchrun = [sys.executable, "-m", "torch.distributed.run", *shape, str(dump), str(tmp_path / "theirs"), "--x", "y z"]
    subprocess.run(torchrun, check=True, timeout=100, cwd=launcher.jobs[0].folder)
    ours, theirs = seen_by(tmp_path / "ours"), seen_by(tmp_path / "theirs")
    differ = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
    for rank in (0, 1):
        assert ours[rank]["environment"].keys() == theirs[rank]["environment"].keys()
        for name, value in theirs[rank]["environment"].items():
            assert ours[rank]["environment"][name] == value or name in differ, name
        for what in ("cwd", "word", "name", "path"):
            assert ours[rank][what] == theirs[rank][what]
        assert ours[rank]["argv"][2:] == theirs[rank]["argv"][2:]
        assert ours[rank]["argv"][0] == theirs[rank]["argv"][0]


def test_two_nodes_number_their_ranks_as_torchrun_does(launcher: Launcher, dump: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    outcome = launcher.run("--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", str(dump), str(folder))
    assert outcome.exit_code == 0, outcome.err
    seen = {rank: each["environment"] for rank, each in seen_by(folder).items()}
    names = ("LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
    assert {rank: tuple(each[name] for name in names) for rank, each in seen.items()} == {
        0: ("0", "0", "0", "4", "2", "2", "4"),
        1: ("1", "0", "1", "4", "2", "2", "4"),
        2: ("0", "1", "2", "4", "2", "2", "4"),
        3: ("1", "1", "3", "4", "2", "2", "4"),
    }
    assert len({each["MASTER_PORT"] for each in seen.values()}) == 1
    for rank in range(4):
        assert f"hello from {rank}" in outcome.out  # on the console, prefixed
        assert any(f"hello from {rank}" in path.read_text() for path in launcher.jobs[0].log_dir.rglob("*.log"))


def test_all_ranks_are_restarted_together(launcher: Launcher, total: Path) -> None:
    outcome = launcher.run("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2", str(total), "killed", "2")
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.count("attempt 2 sum 1") == 2
    assert "attempt 0 sum" not in outcome.out


def test_after_max_restarts_the_job_fails_root_cause_first(launcher: Launcher, total: Path) -> None:
    outcome = launcher.run("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", str(total), "exits", "9")
    assert outcome.exit_code == 1
    cause = next(line for line in outcome.err.splitlines() if "rank 1" in line)
    assert "node" in cause
    assert "3" in cause


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_traceback_reaches_the_launcher_s_console(launcher: Launcher, tmp_path: Path, start_method: str) -> None:
    script = tmp_path / "bug.py"
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    raise ValueError('a bug at home')\n")
    outcome = launcher.run("--nproc-per-node", "2", "--start-method", start_method, str(script))
    assert outcome.exit_code == 1
    for words in ("rank 1", "node0", "Traceback", "bug.py", "ValueError: a bug at home"):
        assert words in outcome.err


def test_modules_and_programs(launcher: Launcher) -> None:
    outcome = launcher.run("-m", "this")
    assert outcome.exit_code == 0, outcome.err
    assert "Namespaces are one honking great idea" in outcome.out
    outcome = launcher.run("--no-python", "--nproc-per-node", "2", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"')
    assert outcome.exit_code == 0, outcome.err
    assert "rank 0 of 2" in outcome.out
    assert "rank 1 of 2" in outcome.out


def test_with_a_range_of_nodes_the_job_goes_on_with_fewer_and_grows_again(launcher: Launcher, tmp_path: Path) -> None:
    script, end = tmp_path / "waits.py", tmp_path / "end"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\nprint('world', os.environ['WORLD_SIZE'], flush=True)\n"
        "while not Path(sys.argv[1]).exists():\n    time.sleep(0.05)\n"
    )
    job = launcher.start("--nnodes", "1:2", "--max-restarts", "1", str(script), str(end))
    until(lambda: job.out.count("world 2") == 2, 80, "both ranks are up")
    index = next(str(node["index"]) for node in job.status()["nodes"] if node["ranks"][0]["rank"] == 0)
    assert job.ask("inject", "kill-node", index).returncode == 0
    until(lambda: "world 1" in job.out, 80, "the other one goes on, alone")
    assert job.ask("inject", "boot-node", index).returncode == 0
    until(lambda: job.out.count("world 2") == 4, 80, "the node is back")
    end.touch()
    outcome = job.wait()
    assert outcome.exit_code == 0, outcome.err
    assert job.ask("logs", "0", "--log-dir", str(job.log_dir)).stdout.splitlines() == ["world 2", "world 1", "world 2"]
