"""What starts MPI jobs here, and the command lines that start a pair."""

from pathlib import Path

import pytest

from deadpool.agent.edges.launcher import MpiKind, MpiLauncher, find_launcher, pair_command, pair_environment
from deadpool.host.errors import ConfigError

MPICH = MpiLauncher(program="/v/bin/mpiexec", kind=MpiKind.MPICH, library="/v/lib/libmpi.so.12")
OPEN_MPI = MpiLauncher(program="/v/bin/mpiexec", kind=MpiKind.OPEN_MPI)


def command(launcher: MpiLauncher, *hosts: str, slurm: bool = False, root: bool = False) -> str:
    return " ".join(pair_command(launcher, hosts, ["sidecar"], slurm=slurm, root=root))


def test_on_one_machine() -> None:
    assert command(MPICH, "127.0.0.1", "127.0.0.1") == "/v/bin/mpiexec -n 2 -launcher fork sidecar"
    assert command(OPEN_MPI, "h", "h") == "/v/bin/mpiexec -n 2 --oversubscribe --bind-to none sidecar"
    assert "--allow-run-as-root" in command(OPEN_MPI, "h", "h", root=True)


def test_on_two_machines_each_gets_one_process_in_that_order() -> None:
    assert command(MPICH, "10.0.0.1", "10.0.0.2") == "/v/bin/mpiexec -n 2 -hosts 10.0.0.1,10.0.0.2 -ppn 1 sidecar"
    assert command(OPEN_MPI, "a", "b").endswith("--host a,b sidecar")


def test_in_an_allocation_it_is_a_step_beside_the_others_with_its_nodes_named() -> None:
    said = command(MPICH, "n2", "n1", slurm=True)
    assert said.startswith("srun --overlap --nodes=2 --ntasks=2 ")
    assert "--nodelist=n2,n1" in said
    assert "--mpi=pmi2" in said
    assert command(OPEN_MPI, "n2", "n1", slurm=True) == command(OPEN_MPI, "n2", "n1"), "it makes such a step by itself"


def test_a_pair_is_no_part_of_the_mpi_job_that_its_agent_may_be_in() -> None:
    inherited = {"PMI_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PATH": "/bin", "SLURM_JOB_ID": "1"}
    ours = pair_environment(inherited, MPICH, one_machine=True)
    assert ours.items() >= {"PATH": "/bin", "SLURM_JOB_ID": "1", "MPI4PY_LIBMPI": "/v/lib/libmpi.so.12"}.items()
    assert not {"PMI_RANK", "OMPI_COMM_WORLD_SIZE"} & ours.keys()
    assert pair_environment({"MPI4PY_LIBMPI": "mine"}, MPICH, one_machine=True)["MPI4PY_LIBMPI"] == "mine"
    assert "MPI4PY_LIBMPI" not in pair_environment({}, OPEN_MPI, one_machine=True)


def test_two_machines_share_no_memory_even_if_they_share_a_kernel() -> None:
    assert pair_environment({}, MPICH, one_machine=False)["UCX_TLS"] == "^sysv"
    assert "UCX_TLS" not in pair_environment({}, MPICH, one_machine=True)
    assert pair_environment({"UCX_TLS": "rc,self"}, MPICH, one_machine=False)["UCX_TLS"] == "rc,self"


def test_no_launcher_is_said_in_one_line_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        find_launcher(beside=tmp_path, path=str(tmp_path))
    said = str(refused.value)
    assert "\n" not in said
    assert f"mpiexec or mpirun or mpiexec.hydra (in {tmp_path} and PATH)" in said
    assert "pip install mpich" in said


def test_the_launcher_says_of_which_kind_it_is(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0'\n")
    program.chmod(0o700)
    pytest.importorskip("mpi4py", reason="is looked for as well")
    assert find_launcher(beside=tmp_path) == MpiLauncher(program=str(program), kind=MpiKind.OPEN_MPI)
