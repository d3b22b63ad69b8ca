"""A hooked job at the command line: what a person sees and can do while it runs, and a script with a bug."""

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from launching import Job, Launcher, until
from ports import port_for_later

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"
SMALL = ("--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch", "2")

BUG = """
import sys
import torch
import deadpool

run = deadpool.join()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = run.protect(model=model, optimizer=optimizer)

def train_step(step):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    if step == 3 and run.rank == 1:
        raise ValueError("a bug at step 3")
    optimizer.step()
    return loss.item()

for step, loss in guard.run(train_step, until=10):
    pass
"""


def test_a_script_that_raises_is_fatal_root_cause_first(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "bug.py"
    script.write_text(BUG)
    outcome = launcher.run("--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", str(script))
    assert outcome.exit_code == 1
    lines = [line for line in outcome.err.splitlines() if not line.startswith(("deadpool", "[rank"))]
    assert lines[0].startswith("rank 1 on node")
    assert "ValueError: a bug at step 3" in outcome.err
    failures = [each for each in launcher.jobs[0].events() if each["event"] == "rank_exited" and each["exit_code"] == 1]
    assert len(failures) <= 2  # once, and once more to see that it comes again


def fetched(page: str) -> str:
    with urlopen(f"http://{page}", timeout=60) as answer:
        body: bytes = answer.read()
    return body.decode()


def _has_all_stacks(job: Job) -> bool:
    """Returns whether the ranks' stacks are in the diagnosis: on a busy machine an agent may answer too late for one."""
    asked = job.ask("diagnose")
    assert asked.returncode == 0, asked.stderr
    return "<module> (" in asked.stdout and "has not answered" not in asked.stdout


def _look_back(job: Job, past: dict[str, Any], place: str) -> None:
    """After the end the logs tell the same, and the trace has what each rank did in the one recovery, in its time."""
    assert json.loads(job.ask("recoveries", "--json").stdout) == [past]
    assert "exit code 143" in job.ask("diagnose").stdout
    told = job.ask("trace", "trace.json")
    assert told.returncode == 0, told.stderr
    traced = json.loads((job.folder / "trace.json").read_text())["traceEvents"]
    names = {each["pid"]: each["args"]["name"] for each in traced if each["name"] == "process_name"}
    assert set(names.values()) == {"supervisor", "node0", "node1", "node2"}
    spans = [each for each in traced if each["ph"] == "X" and each["args"].get("generation", 2) == 2]
    joiner = {each["name"] for each in spans if names[each["pid"]] == place and each["tid"] == 3}
    assert {"builds and rehearses", "opens its groups", "restores", "first step"} <= joiner
    (whole,) = [each for each in spans if each["pid"] == 0 and each["tid"] == 1]
    restored = [each for each in spans if each["name"] == "restores"]
    assert len(restored) == 4
    slack = 5_000_000  # microseconds, for messages that are late on a busy machine
    assert all(whole["ts"] - slack < each["ts"] < whole["ts"] + whole["dur"] + slack for each in restored)


def test_status_inject_events_stop(launcher: Launcher) -> None:
    metrics_port = port_for_later()
    options = ("--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", "--metrics-port", str(metrics_port))
    job = launcher.start(*options, str(EXAMPLE), "--steps", "100000", *SMALL)
    until((job.job_folder / "endpoint.json").exists, 60, "the supervisor listens")
    until(lambda: job.status()["commit_step"] > 3, 80, "steps are committed")

    status = job.status()
    assert (status["phase"], status["hooked"], status["world_size"]) == ("run", True, 4)
    nodes = {each["node_id"]: (each["role"], tuple(rank["rank"] for rank in each["ranks"])) for each in status["nodes"]}
    assert nodes.keys() == {"node0", "node1", "node2"}
    assert sorted(nodes.values()) == [("member", (0, 1)), ("member", (2, 3)), ("spare", ())]
    place = next(name for name in nodes if 2 in nodes[name][1])
    pids = {rank["rank"]: rank["pid"] for each in status["nodes"] for rank in each["ranks"]}
    assert set(pids.values()) <= set(job.pids())

    held = json.loads(job.ask("status", "--state", "--json").stdout)["state"]
    assert held["step"] > 3
    assert {each["group"] for each in held["groups"]} == {"parameters", "optimizer state", "extras and metadata"}
    alone = [each for each in held["groups"] if not each["same"]]  # the random generators are each rank's own
    assert sorted(rank for each in alone if each["group"] == "extras and metadata" for rank in each["ranks"]) == [0, 1, 2, 3]
    assert all(len({*each["nodes"], *each["replicas"]}) == 2 for each in alone)

    of_job, of_spare = f'job_id="{job.job_id}"', f'job_id="{job.job_id}",node="node2"'
    assert f"deadpool_protected{{{of_job}}} 1.0" in fetched(f"127.0.0.1:{metrics_port}/metrics")
    targets = json.loads(fetched(f"127.0.0.1:{metrics_port}/targets"))
    assert [each["labels"]["deadpool_part"] for each in targets] == ["supervisor", "agent", "agent", "agent"]
    (of_node2,) = (each["targets"][0] for each in targets if each["labels"].get("deadpool_node") == "node2")
    assert f"deadpool_agent_connected{{{of_spare}}} 1.0" in fetched(f"{of_node2}/metrics")

    answer = job.ask("inject", "kill-rank", "2")
    assert answer.returncode == 0, answer.stderr
    (recovery,) = until(lambda: job.status()["recoveries"], 60, "the recovery")
    assert (recovery["class"], recovery["node"], recovery["ranks"]) == ("transient", place, [2])
    assert recovery["survivors_kept_processes"]
    now = {rank["rank"]: rank["pid"] for each in job.status()["nodes"] for rank in each["ranks"]}
    assert {rank for rank in now if now[rank] != pids[rank]} == {2}
    table = job.ask("status").stdout
    assert "transient: " in table
    assert "rank 2 back in place" in table

    (past,) = json.loads(job.ask("recoveries", "--json").stdout)
    assert (past["class"], past["ranks"], past["phases_s"]) == ("transient", [2], recovery["phases_s"])
    until(lambda: _has_all_stacks(job), 60, "every node has answered")

    lines = [json.loads(line) for line in job.ask("events", "--json").stdout.splitlines()]
    assert {"started", "hooked", "injection", "rank_exited", "recovered"} <= {line["event"] for line in lines}
    assert lines == job.events()[: len(lines)]
    until(lambda: "recovered in" in job.err, 60, "the launcher has said it")

    assert job.ask("stop").returncode == 0
    assert job.wait().exit_code == 143
    _look_back(job, past, place)
    last = (job.log_dir / "metrics.prom").read_text()
    assert f'deadpool_recoveries_total{{class="transient",{of_job}}} 1.0' in last
    assert f'deadpool_injections_total{{{of_job},kind="kill-rank"}} 1.0' in last


def test_a_node_lost_while_the_script_still_imports_is_replaced(launcher: Launcher, tmp_path: Path) -> None:
    """The import takes as long as the test wants. No restart is allowed (--max-restarts 0), and none is counted."""
    script, imported = tmp_path / "slow_import.py", tmp_path / "imported"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\nprint('imports', flush=True)\n"
        "while not Path(sys.argv[1]).exists():\n    time.sleep(0.05)\n"
        "import deadpool, torch\nrun = deadpool.join()\n"
        "torch.distributed.barrier()  # neither ends while the other still connects to it\n"
        "print('joined', run.rank, os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
    )
    job = launcher.start("--nnodes", "2", "--spares", "1", str(script), str(imported))
    until(lambda: job.out.count("imports") == 2, 80, "both ranks are in their imports")
    assert job.ask("inject", "kill-node", "1").returncode == 0
    until(lambda: job.out.count("imports") == 4, 80, "both begin again, one of them on the spare")
    imported.touch()
    outcome = job.wait()
    assert outcome.exit_code == 0, outcome.err
    assert sorted(line.split("] ")[-1] for line in outcome.out.splitlines() if "joined" in line) == ["joined 0 0", "joined 1 0"]
