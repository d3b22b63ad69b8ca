"""What this machine is like, for `deadpool doctor`: reads, asks programs, and judges nothing.

    python -m deadpool.cli.doctor.probes PORT PYTHON

prints it as JSON: that is how another machine is asked.
"""

import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from deadpool.cli.doctor.checks import Machine
from deadpool.host.disk import free_bytes
from deadpool.host.ports import why_taken
from deadpool.host.vault_folders import VAULT_ROOT

_TIMEOUT_S = 60.0
_MPI_S = 10.0
_TORCH = """
import json, torch, torch.distributed as dist
gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus and dist.is_nccl_available() else ""
print(json.dumps({"torch": torch.__version__, "gpus": gpus, "nccl": nccl}))
"""


def this_machine(*, port: int, python: str) -> Machine:
    """`port`: to be looked at, 0 for none. `python`: the ranks' interpreter, the only one that knows torch."""
    shm = os.statvfs(VAULT_ROOT)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return Machine(
        wall_s=time.time(),
        shm_bytes=shm.f_blocks * shm.f_frsize,
        shm_free_bytes=free_bytes(VAULT_ROOT),
        shm_writable=os.access(VAULT_ROOT, os.W_OK),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        rdma=any(Path("/sys/class/infiniband").glob("*")),
        files_soft=soft,
        files_hard=hard,
        ports=(int(low), int(high)),
        port_free=port == 0 or not why_taken("", port),
        gpu_devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        torch=_torch(python),
        mpi=_mpi(),
        memory_free_bytes=psutil.virtual_memory().available,
    )


def slurm_config() -> str | None:
    """Returns what `scontrol show config` prints, None without Slurm."""
    return _output(["scontrol", "show", "config"]) if shutil.which("scontrol") else None


def batch_script(job_id: str) -> str | None:
    """Returns the Slurm job's batch script, None where it has none."""
    return _output(["scontrol", "write", "batch_script", job_id, "-"]) or None  # for salloc's it prints nothing and exits with 0


def to_json(machine: Machine) -> str:
    return json.dumps(dataclasses.asdict(machine))


def from_json(text: str) -> Machine:
    fields = json.loads(text)
    fields["ports"] = tuple(fields["ports"])
    return Machine(**fields)


def _torch(python: str) -> dict[str, object]:
    try:
        done = subprocess.run([python, "-P", "-c", _TORCH], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    if done.returncode != 0:
        return {"error": (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]}
    said = json.loads(done.stdout.splitlines()[-1])
    return said if isinstance(said, dict) else {}


def _mpi() -> list[str]:
    """Returns a line for each MPI whose starter is in PATH."""
    found: dict[str, str] = {}
    for name in ("mpiexec", "mpirun", "mpiexec.hydra"):
        path = shutil.which(name)
        if path is None:
            continue
        lines = [line.strip() for line in (_output([path, "--version"], _MPI_S) or "").splitlines() if line.strip()]
        version = next((line for line in lines if "ersion" in line or "MPI" in line), next(iter(lines), "of unknown version"))
        found.setdefault(os.path.realpath(path), f"{name}: {version}")
    return list(found.values())


def _output(command: list[str], timeout_s: float = _TIMEOUT_S) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    print(to_json(this_machine(port=int(sys.argv[1]), python=sys.argv[2])))
