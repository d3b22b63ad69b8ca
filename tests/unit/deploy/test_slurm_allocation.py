"""Slurm's text in, values out."""

import pytest

from deadpool.deploy.slurm.allocation import (
    Allocation,
    NodeState,
    Seats,
    allocation_of,
    check_gpus,
    counts,
    expand,
    node_states,
    seats,
    step_command,
    step_name,
    steps_of,
    task_of,
)
from deadpool.deploy.slurm.srun_options import is_of_srun
from deadpool.host.errors import ConfigError

FIVE = Allocation(job_id="7", nodes=("n1", "n2", "n3", "n4", "n5"), cpus=(2,) * 5)
# As Slurm 22.05 sets it in a batch script.
BATCH = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "2(x3)", "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "3", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("", ()),
        ("a", ("a",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-11,20],login", ("n08", "n09", "n10", "n11", "n20", "login")),
        ("r[1-2]c[3,5]-ib,x", ("r1c3-ib", "r1c5-ib", "r2c3-ib", "r2c5-ib", "x")),
        ("gpu-a,gpu-b,n[001]", ("gpu-a", "gpu-b", "n001")),
    ],
)
def test_host_lists(hostlist: str, names: tuple[str, ...]) -> None:
    assert expand(hostlist) == names


def test_counts() -> None:
    assert counts("2(x3),4,128(x2)") == (2, 2, 2, 4, 128, 128)


def test_an_allocation_is_seen_and_its_absence() -> None:
    assert allocation_of({"PATH": "/bin"}) is None
    expected = Allocation(job_id="7", nodes=("n1", "n2", "n3"), cpus=(2, 2, 2), name="train", restarts=0)
    assert allocation_of(BATCH) == expected
    requeued = allocation_of(BATCH | {"SLURM_RESTART_COUNT": "2"})
    assert requeued is not None
    assert requeued.restarts == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_ID": "0"}, "srun has started deadpool-launch 3 times"),
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous"),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}, r"different numbers of CPUs \(4\(x2\),2\)"),
        ({"SLURM_JOB_NODELIST": ""}, "do not say which nodes"),
    ],
)
def test_allocations_that_cannot_be_used(changed: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        allocation_of(BATCH | changed)


@pytest.mark.parametrize(
    ("nnodes", "spares", "expected"),
    [
        (None, None, (5, 5, 0)),
        (None, 2, (3, 3, 2)),
        ((3, 3), None, (3, 3, 2)),
        ((2, 2), 1, (2, 2, 1)),
        ((2, 8), None, (2, 5, 0)),
        ((2, 8), 1, (2, 4, 1)),
        ((4, 4), 0, (4, 4, 0)),
    ],
)
def test_who_trains_and_who_waits(nnodes: tuple[int, int] | None, spares: int | None, expected: tuple[int, int, int]) -> None:
    least, most, waiting = expected
    assert seats(FIVE, nnodes=nnodes, spares=spares) == Seats(at_least=least, nnodes=most, spares=waiting)


@pytest.mark.parametrize(
    ("nnodes", "spares", "words"),
    [
        (None, 5, "--spares 5: Slurm job 7 has 5 nodes, and at least one must train"),
        ((6, 6), None, "--nnodes 6: 6 nodes, but Slurm job 7 has 5"),
        ((4, 4), 2, "--nnodes 4 and --spares 2: 6 nodes, but Slurm job 7 has 5"),
    ],
)
def test_an_allocation_that_is_too_small(nnodes: tuple[int, int] | None, spares: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        seats(FIVE, nnodes=nnodes, spares=spares)


def test_the_step_outlives_a_node() -> None:
    command = step_command(FIVE, FIVE.nodes[:2], ["agent", "--x"], name=step_name("train-7"), epilog="/journal/task-epilog")
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1", "--nodelist=n1,n2"} <= set(command)
    assert command[0] == "srun"
    assert command[-2:] == ["agent", "--x"]
    assert {"--job-name=deadpool-train-7", "--task-epilog=/journal/task-epilog"} <= set(command)
    assert steps_of("7.batch batch\n7.0 deadpool-train-7\n7.1 deadpool-other-7\n\n", name=step_name("train-7")) == ["7.0"]


def test_a_task_knows_its_node() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n3", "SLURM_PROCID": "2", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}
    task = task_of(step)
    assert (task.node, task.number, task.launched_from) == ("n3", 2, "10.0.0.1")
    with pytest.raises(ConfigError, match="start this with srun"):
        task_of(BATCH)


def test_node_states() -> None:
    text = (
        "NodeName=n1 Arch=x86_64 NodeAddr=n1 State=MIXED ThreadsPerCore=1 Partitions=main BootTime=2026\n"
        "NodeName=n2 State=ALLOCATED+DRAIN ThreadsPerCore=1 Reason=bad fan, see log [root@2026-11-29T19:31:01]\n"
        "NodeName=n3 State=DOWN*+DRAIN Reason=Not responding [slurm@2026-11-29T19:31:01]\n"
        "slurm_load_node error: Unable to contact slurm controller\n"
    )
    assert node_states(text) == {
        "n1": NodeState(down=False, drains=False, text="MIXED"),
        "n2": NodeState(down=False, drains=True, text="ALLOCATED+DRAIN", reason="bad fan, see log"),
        "n3": NodeState(down=True, drains=True, text="DOWN*+DRAIN", reason="Not responding"),
    }


DETAILS = (  # as `scontrol --oneliner --details show job` prints it, but for most of the rest
    "JobId=7 JobName=x GRES_IDX=no TRES=cpu=6,node=3 JOB_GRES=gpu:a100:4,gpu:h100:2   Nodes=n[1-2] CPU_IDs=0-1 Mem=0 "
    "GRES=gpu:a100:2(IDX:0,2)   Nodes=n3 CPU_IDs=0-1 Mem=0 GRES={} MinCPUsNode=1 TresPerNode=gres:gpu:2\n"
)


@pytest.mark.parametrize("other", ["gpu:h100:2(IDX:0-1)", "gpu:a100:1(IDX:0)", ""])
def test_nodes_with_other_gpus_are_refused(other: str) -> None:
    with pytest.raises(ConfigError, match=r"different GPUs \(n\[1-2\]: gpu:a100:2; n3: (gpu:h100:2|gpu:a100:1|none)\)"):
        check_gpus(FIVE, DETAILS.format(other))


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified\n", DETAILS.format("gpu:a100:2(IDX:1-2)")])
def test_nodes_with_the_same_gpus_and_unknown_ones_are_not(text: str) -> None:
    check_gpus(FIVE, text)


def test_options_of_srun_are_known_as_such() -> None:
    assert all(is_of_srun(option) for option in ("--gres", "--gpus-per-node", "--cpus_per_task", "-N", "-n", "-p"))
    assert not any(is_of_srun(option) for option in ("--nnodes", "--frobnicate", "-m", "-t", "-r", "-h"))
