"""The same scripts under torchrun and deadpool-launch: environment, arguments, logs, consoles, exit codes, failure reports."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from launching import Launcher

pytestmark = pytest.mark.e2e

SEEN = """
import json, os, sys
from pathlib import Path
rank = os.environ["RANK"]
print(f"out of {rank}: apple")
print(f"err of {rank}: orange", file=sys.stderr)
begin, within = ("TORCH", "GROUP_", "ROLE_", "MASTER_", "OMP_", "CUDA_"), ("RANK", "WORLD_SIZE")
names = [name for name in os.environ if name.startswith(begin) or any(word in name for word in within)]
seen = {"environment": {name: os.environ[name] for name in names}, "argv": sys.argv}
Path(sys.argv[1], rank).write_text(json.dumps(seen))
if rank == "0":
    print("half a line: \\u00e9", end="")
    os._exit(0)
"""

FAILS = """
import os, signal, sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("what went wrong")
    signal.sigwait([signal.SIGTERM])
main()
"""

PREFIX = "[${role_name}${rank}]:"
MUST_DIFFER = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
}


@dataclass(frozen=True, slots=True)
class Run:
    exit_code: int
    out: list[str]
    err: str
    logs: Path  # the folder with attempt_0


def under_torchrun(folder: Path, *arguments: str) -> Run:
    command = [sys.executable, "-m", "torch.distributed.run", "--log-dir", str(folder / "theirs-logs"), *arguments]
    environment = os.environ | {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": PREFIX}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, env=environment, check=False)
    (logs,) = (folder / "theirs-logs").iterdir()
    return Run(done.returncode, sorted(done.stdout.splitlines()), done.stderr, logs)


def under_deadpool(launcher: Launcher, *arguments: str) -> Run:
    job = launcher.start(*arguments, environment={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": PREFIX})
    done = job.wait()
    return Run(done.exit_code, sorted(done.out.splitlines()), done.err, job.log_dir / "node0")


def logs_of(run: Run) -> dict[str, str]:
    return {str(path.relative_to(run.logs)): path.read_text() for path in run.logs.glob("attempt_*/**/*.log")}


def test_what_ranks_see_and_what_becomes_of_their_output(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "seen.py"
    script.write_text(SEEN)
    options = [
        "--standalone", "--nproc_per_node", "2", "--role", "trainer", "-r", "0:1", "--tee", "0:2,1:3",
        "--local-ranks-filter", "1", "--duplicate-stdout-filters", "apple",
        "--duplicate-stderr-filters", "pear", "--max-restarts=1", "--virtual-local-rank",
        "--signals-to-handle", "SIGTERM,SIGUSR1", str(script),
    ]  # fmt: skip
    seen: dict[str, dict[str, Any]] = {}
    runs: dict[str, Run] = {}
    for who in ("theirs", "ours"):
        (tmp_path / who).mkdir()
        arguments = [*options, str(tmp_path / who), "--gpu=${local_rank}", "$HOME", "a b"]
        runs[who] = under_torchrun(tmp_path, *arguments) if who == "theirs" else under_deadpool(launcher, *arguments)
        assert runs[who].exit_code == 0, runs[who].err
        seen[who] = {path.name: json.loads(path.read_text()) for path in (tmp_path / who).iterdir()}
    for rank in ("0", "1"):
        ours, theirs = seen["ours"][rank], seen["theirs"][rank]
        assert ours["argv"][2:] == theirs["argv"][2:] == [f"--gpu={rank}", "$HOME", "a b"]
        assert ours["environment"].keys() == theirs["environment"].keys()
        for name in theirs["environment"].keys() - MUST_DIFFER:
            assert ours["environment"][name] == theirs["environment"][name], name
    assert runs["ours"].out == runs["theirs"].out == ["[trainer1]:out of 1: apple"]
    assert "[trainer1]:err of 1: orange" in runs["ours"].err.splitlines()
    assert "[trainer1]:err of 1: orange" in runs["theirs"].err.splitlines()
    assert "err of 0" not in runs["ours"].err
    ours_logs, theirs_logs = logs_of(runs["ours"]), logs_of(runs["theirs"])
    assert {name: text for name, text in theirs_logs.items() if text} == {name: text for name, text in ours_logs.items() if text}


def test_failures(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    options = ["--standalone", "--nproc-per-node", "2", "-t", "3", str(script)]
    ours, theirs = under_deadpool(launcher, *options), under_torchrun(tmp_path, *options)
    assert ours.exit_code == theirs.exit_code == 1
    for run in (ours, theirs):
        assert "ValueError: what went wrong" in run.err
        assert "Traceback" in run.err
    report = json.loads((ours.logs / "attempt_0" / "1" / "error.json").read_text())["message"]
    expected = json.loads((theirs.logs / "attempt_0" / "1" / "error.json").read_text())["message"]
    assert report["message"] == expected["message"]
    assert report.keys() == expected.keys()
    assert report["extraInfo"]["py_callstack"].splitlines()[-1] == expected["extraInfo"]["py_callstack"].splitlines()[-1]
    assert not (ours.logs / "attempt_0" / "0" / "error.json").exists()
    assert "rank 1 on node0 failed: exit code 1" in ours.err
    assert "exitcode  : 1" in theirs.err
