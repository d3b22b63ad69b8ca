"""How the two processes of an MPI pair are started: which MPI is there, and the command line. The command is pure."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from deadpool.host.errors import ConfigError
from deadpool.proto.config import JobConfig, Transport

_LAUNCHERS = ("mpiexec", "mpirun", "mpiexec.hydra")
_VERSION_S = 10.0
_OF_A_PAIR = 2


class MpiKind(StrEnum):
    MPICH = "MPICH"  # and what takes its options: Intel MPI, MVAPICH
    OPEN_MPI = "Open MPI"


_LIBRARIES = {MpiKind.MPICH: "libmpi.so.12", MpiKind.OPEN_MPI: "libmpi.so.40"}  # the two ABIs that there are


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiLauncher:
    """`library`: that belongs to it, for mpi4py to load; "": mpi4py finds one."""

    program: str
    kind: MpiKind
    library: str = ""


def find_launcher(beside: Path = Path(sys.executable).parent, path: str | None = None) -> MpiLauncher:
    """Returns what starts MPI jobs here: beside this interpreter, then in PATH. ConfigError says what was looked for."""
    found = next(filter(None, (shutil.which(name, path=where) for where in (str(beside), path) for name in _LAUNCHERS)), None)
    missing = [] if importlib.util.find_spec("mpi4py") is not None else [f"mpi4py (for {sys.executable})"]
    if found is None:
        missing.append(f"{' or '.join(_LAUNCHERS)} (in {beside} and PATH)")
    if missing:
        raise ConfigError(f"--h2h mpi: not found: {', '.join(missing)}; pip install mpich mpi4py installs both, or use --h2h tcp")
    assert found is not None
    kind = _kind(found)
    library = Path(found).resolve().parent.parent / "lib" / _LIBRARIES[kind]
    return MpiLauncher(program=found, kind=kind, library=str(library) if library.exists() else "")


def check_transport(config: JobConfig) -> None:
    """Raises ConfigError when the job's replicas are to travel by MPI and there is none on this machine."""
    if config.h2h is Transport.MPI:
        find_launcher()


def _kind(program: str) -> MpiKind:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--h2h mpi: {program} --version: {error}; pip install mpich installs one that works") from error
    return MpiKind.OPEN_MPI if "Open MPI" in said or "OpenRTE" in said else MpiKind.MPICH


def pair_command(launcher: MpiLauncher, hosts: Sequence[str], command: Sequence[str], *, slurm: bool, root: bool) -> list[str]:
    """Returns the command that starts `command` on the first host as rank 0, and on the second one as rank 1.

    `slurm`: the hosts are Slurm's names of nodes of this allocation. Open MPI's own launcher makes the step then, whatever PMIx
    Slurm was built with. `root`: Open MPI asks whether that is meant.
    """
    one_machine = len(set(hosts)) == 1
    if slurm and launcher.kind is MpiKind.MPICH:
        names = ",".join(hosts)
        step = ["--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", f"--nodelist={names}", "--distribution=arbitrary"]
        return ["srun", *step, "--cpu-bind=none", "--mpi=pmi2", "--kill-on-bad-exit=1", "--quiet", *command]
    if launcher.kind is MpiKind.OPEN_MPI:
        options = ["--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if root else [])]
        options += [] if one_machine else ["--host", ",".join(hosts)]
    else:
        options = ["-launcher", "fork"] if one_machine else ["-hosts", ",".join(hosts), "-ppn", "1"]
    return [launcher.program, "-n", str(_OF_A_PAIR), *options, *command]


def pair_environment(inherited: Mapping[str, str], launcher: MpiLauncher, *, one_machine: bool) -> dict[str, str]:
    """Returns the environment of a pair: without what would make it a part of another MPI or Slurm step.

    Not on `one_machine`: UCX, in MPICH and in some builds of Open MPI, takes nodes that share a kernel and an IPC namespace for
    one machine, as containers and the nodes of a test cluster may; MPI_Init then waits for System V memory that is not shared.
    """
    ours = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("PMI_", "PMIX_", "OMPI_", "PRTE_", "HYDRA_", "MPI_LOCAL"))
    }
    library = {} if not launcher.library or "MPI4PY_LIBMPI" in ours else {"MPI4PY_LIBMPI": launcher.library}
    shared = {} if one_machine or "UCX_TLS" in ours else {"UCX_TLS": "^sysv"}
    return ours | library | shared | {"OMP_NUM_THREADS": "1"}


def in_slurm(environment: Mapping[str, str], nodes: Sequence[str]) -> bool:
    """Returns whether these are Slurm's names of nodes of an allocation that this process is in."""
    return "SLURM_JOB_ID" in environment and environment.get("SLURMD_NODENAME") in nodes and shutil.which("srun") is not None


def sidecar_command(nodes: Sequence[str], vaults: Sequence[Path]) -> list[str]:
    """Returns the command of both processes; each finds out by its MPI rank which of the two it is."""
    return [sys.executable, "-m", "deadpool.agent.edges.sidecar", "--nodes", *nodes, "--vaults", *map(str, vaults)]


def is_root() -> bool:
    return os.geteuid() == 0
