"""The launcher in a Slurm allocation whose srun is a fake one (the real one: tests/slurm)."""

import contextlib
import os
import shutil
from pathlib import Path

import psutil
import pytest
from launching import Launcher, until

pytestmark = pytest.mark.vault

ALLOCATION = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_CPUS_PER_NODE": "2", "SLURMD_NODENAME": "localhost",
}  # fmt: skip
# Runs its last arguments, the command, as the task of the only node.
AS_A_TASK = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
export SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
exec "$@"
"""


def allocation(folder: Path, srun: str, scontrol: str = "exit 1") -> dict[str, str]:
    """Returns the environment of an allocation of this machine, with this srun and commands of Slurm's that know nothing."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, text in {
        "srun": srun,
        "scontrol": f"#!/bin/sh\n{scontrol}\n",
        "squeue": "#!/bin/sh\n",
        "scancel": "#!/bin/sh\n",
    }.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    return ALLOCATION | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}


def command_words(process: psutil.Process) -> list[str]:
    """Returns its command line, of a process that has ended meanwhile none."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize("journal", [False, True])
def test_a_node_joins_and_nothing_is_left(launcher: Launcher, tmp_path: Path, journal: bool) -> None:
    options = ("--journal", str(tmp_path / "shared")) if journal else ()
    job = launcher.start(
        *options, "--no-python", "sh", "-c", "echo node $SLURMD_NODENAME", environment=allocation(tmp_path, AS_A_TASK), cold=True
    )
    outcome = job.wait()
    assert outcome.exit_code == 0, outcome.err
    assert "node localhost" in outcome.out
    assert [event["node"] for event in job.events() if event["event"] == "node_joined"] == ["localhost"]
    shared = tmp_path / "shared" / job.job_id if journal else job.log_dir / "journal"
    assert (shared / "outcome.json").exists()
    assert not (shared / "token").exists()


def test_an_srun_that_fails(launcher: Launcher, tmp_path: Path) -> None:
    failing = "#!/bin/sh\necho 'srun: error: Unable to create step' >&2\nexit 1\n"
    outcome = launcher.run("--no-python", "true", environment=allocation(tmp_path, failing), cold=True)
    assert outcome.exit_code == 1
    assert "srun has ended with 1" in outcome.err
    assert "no node is left" in outcome.err


def test_all_nodes_die_at_once_and_the_supervisor_with_them(launcher: Launcher, tmp_path: Path) -> None:
    """No event says that a node is lost."""
    environment = allocation(tmp_path, AS_A_TASK)
    options = ("--journal", str(tmp_path / "shared"), "--no-python")
    job = launcher.start(*options, "sleep", "600", environment=environment, cold=True)
    until(lambda: [event for event in job.events() if event["event"] == "started"], 60, "it trains")
    children = psutil.Process(job.process.pid).children(recursive=True)
    children.sort(key=lambda each: each.create_time())  # what one of them has just forked looks the same, and comes later
    names = [f"deadpool.{part}" for part in ("supervisor.main", "agent.main", "cli.nodes.wrapper")]
    for process in [next(each for each in children if name in command_words(each)) for name in names]:
        with contextlib.suppress(psutil.NoSuchProcess):  # the wrapper ends with its agent
            process.kill()
    outcome = job.wait()
    assert (outcome.exit_code, "no node is left" in outcome.err) == (1, True), outcome.err
    shutil.rmtree(f"/dev/shm/deadpool-{job.job_id}-localhost", ignore_errors=True)  # the wrapper may have been quicker


def test_an_allocation_that_slurm_does_not_know(launcher: Launcher, tmp_path: Path) -> None:
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    outcome = launcher.run("--no-python", "true", environment=allocation(tmp_path, AS_A_TASK, unknown), cold=True)
    assert outcome.exit_code == 2
    assert outcome.err.startswith("deadpool: SLURM_JOB_ID=7: Slurm does not know this allocation (slurm_load_jobs error: Invalid")
    assert outcome.err.count("\n") == 1
    assert not launcher.jobs[0].log_dir.exists()


def test_nodes_with_different_gpus(launcher: Launcher, tmp_path: Path) -> None:
    places = [f"Nodes=n{n} CPU_IDs=0 Mem=0 GRES=gpu:{kind}:8(IDX:0-7)" for n, kind in enumerate(("a100", "h100"))]
    environment = allocation(tmp_path, AS_A_TASK, f"echo 'JobId=7 {' '.join(places)}'")
    outcome = launcher.run("--no-python", "true", environment=environment, cold=True)
    assert outcome.exit_code == 2
    assert outcome.err.startswith("deadpool: Slurm job 7: the nodes have different GPUs (n0: gpu:a100:8; n1: gpu:h100:8)")
    assert outcome.err.count("\n") == 1
    assert not launcher.jobs[0].log_dir.exists()
