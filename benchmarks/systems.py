"""How each system starts the same training: what is run, with which settings, and which process is the victim."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "train_gpt.py"
SLOW_SCRIPT = ROOT / "benchmarks" / "slow_construction.py"
RIVALS = ROOT / "benchmarks" / "rivals"
NODES, RANKS_PER_NODE = 2, 2
RANKS = NODES * RANKS_PER_NODE
VICTIM_RANK, VICTIM_NODE = 3, 1
CHECKPOINT_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What all systems train. `options`: further options of train_gpt.py (sizes). `construction_s`: added to the model's."""

    steps: int
    injection_step: int
    options: tuple[str, ...]
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    construction_s: float = 0.0

    @property
    def script(self) -> list[str]:
        return [str(SLOW_SCRIPT), f"{self.construction_s:g}"] if self.construction_s else [str(SCRIPT)]

    def arguments(self, folder: Path, *, checkpoints: bool) -> list[str]:
        """Returns train_gpt.py's arguments. Checkpoints go to disk, as every restarting system needs."""
        disk = ["--checkpoint-dir", str(folder / "disk"), "--checkpoint-every", str(CHECKPOINT_EVERY)]
        log = ["--loss-log", str(folder / "loss.log")]
        return ["--steps", str(self.steps), *log, *(disk if checkpoints else []), *self.options]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command of a system; most need only one."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def deadpool_parts(
    training: Training, folder: Path, runtime: Path, job_id: str, readiness: str = "warm", on_loss: str = "swap"
) -> list[Part]:
    """Returns deadpool-launch as a person would start it; the failure is injected while it runs."""
    heartbeats = [
        "--heartbeat-interval", f"{training.heartbeat_interval_s:g}", "--heartbeat-timeout", f"{training.heartbeat_timeout_s:g}",
    ]  # fmt: skip
    command = [
        sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nnodes", str(NODES),
        "--nproc-per-node", str(RANKS_PER_NODE), "--spares", "1", "--job-id", job_id, "--log-dir", str(folder / "logs"),
        "--summary-json", str(folder / "summary.json"), *heartbeats,
        "--spare-readiness", readiness, "--on-loss", on_loss, *training.script, *training.arguments(folder, checkpoints=False),
    ]  # fmt: skip
    return [Part(name="main", command=tuple(command), environment={"XDG_RUNTIME_DIR": str(runtime)})]


def torchrun_parts(training: Training, folder: Path) -> list[Part]:
    """Returns torchrun at its best: one agent for all four ranks (two need twice as long), a store of its own per attempt.

    Without that last setting a restart meets the dead attempt's addresses in the store and does not recover.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "3",
        *training.script, *training.arguments(folder, checkpoints=True),
    ]  # fmt: skip
    return [Part(name="main", command=tuple(command), environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})]


def nvrx_parts(training: Training, folder: Path, venv: Path, port: int) -> list[Part]:
    """Returns NVRx's ft_launcher: torchrun's restarts, with heartbeats that each rank sends to a monitor."""
    command = [
        venv / "bin/ft_launcher", "--nnodes", "1", "--nproc-per-node", RANKS, "--max-restarts", "3", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "benchmark", "--ft-initial-rank-heartbeat-timeout", 60,
        "--ft-rank-heartbeat-timeout", f"{training.heartbeat_timeout_s:g}",
        RIVALS / "train_nvrx.py", *training.arguments(folder, checkpoints=True),
    ]  # fmt: skip
    environment = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": f"{venv}/bin:/usr/bin:/bin",
    }
    return [Part(name="main", command=tuple(map(str, command)), environment=environment)]


def torchft_parts(training: Training, folder: Path, venv: Path, port: int) -> list[Part]:
    """Returns torchft: a lighthouse, and each rank as a replica group of its own under a torchrun that restarts it.

    All four must take part in a step (--min_replicas), else the others go on without the lost one: other losses, another run.
    """
    lighthouse = [
        venv / "bin/torchft_lighthouse", "--min_replicas", RANKS, "--quorum_tick_ms", 100, "--join_timeout_ms", 10000,
        "--heartbeat_timeout_ms", int(training.heartbeat_timeout_s * 1000), "--bind", f"[::]:{port}",
    ]  # fmt: skip
    parts = [Part(name="lighthouse", command=tuple(map(str, lighthouse)))]
    for group in range(RANKS):
        command = [
            venv / "bin/python", "-m", "torch.distributed.run", "--nnodes", 1, "--nproc-per-node", 1,
            "--master-port", port + 1 + group, "--max-restarts", 10,
            RIVALS / "train_torchft.py", *training.arguments(folder, checkpoints=False),
        ]  # fmt: skip
        environment = {
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA_GROUP_ID": str(group), "NUM_REPLICA_GROUPS": str(RANKS),
            "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        parts.append(Part(name=f"group{group}", command=tuple(map(str, command)), environment=environment))
    return parts
