"""The environment variables of a rank's process. Pure: torchrun's nineteen by their names, and ours."""

from collections.abc import Mapping
from pathlib import Path

from deadpool.proto.config import JobConfig, keeping_to_json
from deadpool.proto.messages import Placement
from deadpool.proto.warm_wire import INHERITED, OPEN_FILES

STANDIN = "DEADPOOL_STANDIN"
NUMA_BINDING = "DEADPOOL_NUMA_BINDING"
PROCESS = "DEADPOOL_PROCESS"  # our number for the process: its strays are known by it

# What makes a process a rank; never taken over from the agent's own environment (it may itself run under torchrun or Slurm).
_OF_A_RANK = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
    "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
    STANDIN, PROCESS, INHERITED,
)  # fmt: skip


def node_environment(
    config: JobConfig,
    inherited: Mapping[str, str],
    *,
    job_dir: Path,
    vault_dir: Path,
    node_id: str,
    host: str,
    open_files: int,
    interface: str = "",
) -> dict[str, str]:
    """Returns what all of the node's ranks share: the environment of the warm process. `open_files`: that a rank may have.

    `interface`: that has the node's address. Without it Gloo would look the machine's own name up, which may lead to nowhere, or
    not to where others reach it.
    """
    environment = {name: value for name, value in inherited.items() if name not in _OF_A_RANK}
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    environment |= loading_environment(config, inherited)
    if config.numa_binding:
        environment[NUMA_BINDING] = config.numa_binding
    if host == "127.0.0.1" or interface:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface or "lo")
    return environment | {
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id or config.job_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": config.signals,
        "GRPC_ENABLE_FORK_SUPPORT": "0",  # DataLoader workers fork without a word about it, and never touch our channel
        "DEADPOOL_JOB_ID": config.job_id,
        "DEADPOOL_JOB_DIR": str(job_dir),
        "DEADPOOL_NODE_ID": node_id,
        "DEADPOOL_HOST": host,
        "DEADPOOL_SOCKET": str(socket_path(job_dir, node_id)),
        "DEADPOOL_VAULT_DIR": str(vault_dir),
        "DEADPOOL_KEEPING": keeping_to_json(config),
        OPEN_FILES: str(open_files),
    }


def loading_environment(config: JobConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns what is read while python and torch's libraries are loaded, where the user has said nothing else.

    One thread for a rank that has neighbours, as torchrun has it. Texts are hashed alike in every process: with a set of them a
    rank on another node would go through it in another order than the one that it replaces.
    """
    wanted = {"PYTHONHASHSEED": "0"} | ({"OMP_NUM_THREADS": "1"} if config.nproc_per_node > 1 else {})
    return {name: value for name, value in wanted.items() if name not in inherited}


def rank_environment(
    config: JobConfig,
    placement: Placement,
    *,
    world_size: int,
    master_node_count: int,
    restart_count: int,
    visible_devices: str,
) -> dict[str, str]:
    """Returns what makes a process this rank, but for the store. `visible_devices`: CUDA_VISIBLE_DEVICES of the node."""
    return {
        "RANK": str(placement.rank),
        "LOCAL_RANK": str(placement.local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(config.nproc_per_node),
        "GROUP_RANK": str(placement.node_rank),
        "GROUP_WORLD_SIZE": str(master_node_count),
        "ROLE_RANK": str(placement.rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": config.role,
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
    } | (_virtual(placement.local_rank, visible_devices) if config.virtual_local_rank else {})


def _virtual(local_rank: int, visible_devices: str) -> dict[str, str]:
    """Returns what shows a rank its own GPU only: of those that the node may use, or of all."""
    visible = [each.strip() for each in visible_devices.split(",") if each.strip()]
    own = visible[local_rank] if local_rank < len(visible) else str(local_rank)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": own}


def store_environment(host: str, port: int) -> dict[str, str]:
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


def socket_path(job_dir: Path, node_id: str) -> Path:
    return job_dir / f"{node_id}.sock"
