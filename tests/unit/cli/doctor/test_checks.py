"""The doctor's judgement: values and texts in, findings out."""

from dataclasses import replace

import pytest
from statuses import job, node, rank

from deadpool.cli.doctor import checks
from deadpool.cli.doctor.checks import DoctorPlan, Level, Machine
from deadpool.cli.options.types import size
from deadpool.proto.config import Places

GIB = 1 << 30
MACHINE = Machine(
    wall_s=1e9, shm_bytes=64 * GIB, shm_free_bytes=60 * GIB, memlock=8 << 20, files_soft=1024, files_hard=65536,
    ports=(32768, 60999), torch={"torch": "2.13.0", "gpus": [], "nccl": ""},
)  # fmt: skip
SLURM = """Configuration data as of 2026-01-01T00:00:00
KillOnBadExit           = 0
SlurmdTimeout           = 300 sec
"""


def test_a_good_machine_is_all_ok() -> None:
    plan = DoctorPlan(world_size=8, nproc_per_node=2, state_bytes=4 * GIB, unique_bytes=2 * GIB)
    assert {each.check: each.level for each in checks.machine_findings(MACHINE, plan)} == dict.fromkeys(
        ("/dev/shm", "nofile", "memlock", "ports", "torch", "MPI"), Level.OK
    )


@pytest.mark.parametrize(
    ("plan", "needed", "level"),
    [
        (DoctorPlan(nproc_per_node=2, state_bytes=8 * GIB, unique_bytes=8 * GIB), 2 * (16 + 16), Level.FAIL),
        (DoctorPlan(nproc_per_node=2, state_bytes=8 * GIB, unique_bytes=GIB), 2 * (16 + 2), Level.OK),
        (DoctorPlan(nproc_per_node=2, state_bytes=8 * GIB, unique_bytes=GIB, checkpoints=True), 2 * (24 + 2), Level.OK),
        (DoctorPlan(nproc_per_node=2, state_bytes=8 * GIB, unique_bytes=2 * GIB, replicas=3), 2 * (16 + 12), Level.WARN),
        (DoctorPlan(state_bytes=8 * GIB, unique_bytes=GIB, checkpoints=True, verify_every=10), 32 + 2, Level.OK),
        (DoctorPlan(state_bytes=8 * GIB, unique_bytes=GIB, verify_every=1), 16 + 2, Level.OK),
        (DoctorPlan(), 0, Level.OK),
        (DoctorPlan(nnodes=4, spares=1, state_bytes=8 * GIB, unique_bytes=GIB), 16 + 2, Level.OK),
        (DoctorPlan(nnodes=4, spares=1, state_bytes=8 * GIB, unique_bytes=GIB, places=Places.SPARES), 16 + 8, Level.OK),
        (DoctorPlan(nnodes=4, spares=2, state_bytes=8 * GIB, unique_bytes=8 * GIB, places=Places.BOTH), 16 + 32, Level.OK),
    ],
)
def test_shm_against_the_plan(plan: DoctorPlan, needed: int, level: Level) -> None:
    assert plan.shm_bytes == needed * GIB
    found = checks.shm(MACHINE, plan)
    assert found.level is level
    assert ("remount,size=65G" in found.advice) is (level is Level.FAIL)


def test_a_containers_shm_is_named_even_without_a_plan() -> None:
    small = replace(MACHINE, shm_bytes=64 << 20, shm_free_bytes=60 << 20)
    assert checks.shm(small, DoctorPlan()).level is Level.WARN


def test_a_shm_that_cannot_be_written() -> None:
    found = checks.shm(replace(MACHINE, shm_writable=False), DoctorPlan())
    assert (found.level, found.found) == (Level.FAIL, "60.0G of 64.0G free, not writable")
    assert "remount,rw" in found.advice


@pytest.mark.parametrize(
    ("soft", "hard", "world_size", "level", "advice"),
    [
        (1024, 4096, 8, Level.OK, ""),
        (-1, -1, 100_000, Level.OK, ""),
        (1024, 65536, 512, Level.WARN, "ulimit -n 65536"),
        (1024, 4096, 4096, Level.FAIL, "raise the hard limit"),
    ],
)
def test_open_files(soft: int, hard: int, world_size: int, level: Level, advice: str) -> None:
    found = checks.files(replace(MACHINE, files_soft=soft, files_hard=hard), DoctorPlan(world_size=world_size))
    assert found.level is level
    assert found.advice.startswith(advice)


def test_memlock_counts_where_there_is_rdma() -> None:
    assert checks.memlock(replace(MACHINE, rdma=True)).level is Level.FAIL
    assert checks.memlock(replace(MACHINE, rdma=True, memlock=-1)).level is Level.OK


def test_ports() -> None:
    taken = checks.ports(replace(MACHINE, port_free=False), DoctorPlan(port=29500))
    assert (taken.level, "29500 is taken" in taken.found) == (Level.FAIL, True)
    assert checks.ports(replace(MACHINE, ports=(60000, 60100)), DoctorPlan()).level is Level.WARN


@pytest.mark.parametrize(
    ("torch", "devices", "level"),
    [
        ({}, 0, Level.FAIL),
        ({"error": "No module named 'torch'"}, 0, Level.FAIL),
        ({"torch": "2.13.0", "gpus": [], "nccl": ""}, 8, Level.FAIL),
        ({"torch": "2.13.0", "gpus": ["H"] * 8, "nccl": ""}, 8, Level.FAIL),
        ({"torch": "2.13.0", "gpus": ["H"] * 2, "nccl": "2.28"}, 2, Level.WARN),
        ({"torch": "2.13.0", "gpus": ["H"] * 8, "nccl": "2.28"}, 8, Level.OK),
    ],
)
def test_gpus(torch: dict[str, object], devices: int, level: Level) -> None:
    assert checks.gpus(replace(MACHINE, torch=torch, gpu_devices=devices), DoctorPlan(nproc_per_node=4)).level is level


@pytest.mark.parametrize(
    ("ahead_s", "uncertain_s", "level"),
    [(0.3, 0.0, Level.OK), (-5.0, 0.1, Level.WARN), (1.2, 0.5, Level.OK), (3600.0, 1.0, Level.FAIL)],
)
def test_clocks(ahead_s: float, uncertain_s: float, level: Level) -> None:
    assert checks.clock("node1", ahead_s, uncertain_s).level is level


def test_bandwidth_says_what_replicas_take() -> None:
    found = checks.bandwidth("a -> b", 1e9, DoctorPlan(nproc_per_node=2, unique_bytes=10**9))
    assert (found.level, "take 2.00 s" in found.found) == (Level.OK, True)
    assert checks.bandwidth("a -> b", 5e7, DoctorPlan()).level is Level.WARN


@pytest.mark.parametrize(
    ("config", "script", "environment", "levels"),
    [
        (SLURM, None, {}, ["ok", "ok"]),
        (SLURM.replace("= 0", "= 1").replace("300", "30"), None, {}, ["warn", "warn"]),
        (SLURM, "#!/bin/sh\n#SBATCH --no-kill\n", {"SLURM_JOB_ID": "7"}, ["ok", "ok", "ok"]),
        (SLURM, "#!/bin/sh\n#SBATCH -N 4 -k --time=5\n", {"SLURM_JOB_ID": "7"}, ["ok", "ok", "ok"]),
        (SLURM, "#!/bin/sh\n#SBATCH --no-killing\n", {"SLURM_JOB_ID": "7"}, ["ok", "ok", "fail"]),
        (SLURM, None, {"SLURM_JOB_ID": "7"}, ["ok", "ok", "warn"]),
        (SLURM, None, {"SLURM_JOB_ID": "7", "SBATCH_NO_KILL": "1"}, ["ok", "ok", "ok"]),
        ("", None, {}, ["ok", "ok"]),
    ],
)
def test_slurm(config: str, script: str | None, environment: dict[str, str], levels: list[str]) -> None:
    assert [each.level for each in checks.slurm(config, script, environment)] == levels


def test_where_the_replicas_of_a_running_job_are() -> None:
    nodes = (
        node(0, "member", rank(0), rank(1), keeps=(2, 3)),
        node(2, "member", rank(2), rank(3)),
        node(3, "spare", keeps=(0, 1, 2, 3)),
    )
    finding = checks.replicas(job(nodes=nodes))
    assert (finding.level, finding.found) == (Level.OK, "of 0-1 on node3, of 2-3 on node0 and node3")
    assert checks.replicas(job()).found == "nowhere yet"


def test_a_rack_with_most_of_the_nodes_is_named() -> None:
    racks = ("r1", "r1", "r2")
    nodes = tuple(node(at, "member", rank(at), domain=rack, keeps=((at + 1) % 3,)) for at, rack in enumerate(racks))
    finding = checks.replicas(job(nodes=nodes))
    assert finding.level is Level.WARN
    assert "2 of 3 nodes are in r1" in finding.found
    assert checks.replicas(job(nodes=nodes, domains_lost_max=1)).level is Level.OK
    nodes = (*nodes[:2], node(2, "member", rank(2)))
    assert "no domain is known of node2" in checks.replicas(job(nodes=nodes, domains_lost_max=1)).found


def test_sizes() -> None:
    assert [size(text) for text in ("0", "500M", "12G", "1.5GiB", "2TB")] == [0, 500 << 20, 12 << 30, 3 << 29, 2 << 40]
