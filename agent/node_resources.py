"""What an agent has once the job's configuration is known: vault, logs, warm process, ranks' processes, store."""

import os
import time
from dataclasses import dataclass, field

from deadpool.agent.core import NodeCore
from deadpool.agent.health.call_records import Records
from deadpool.agent.health.fd_exhaustion import left_out
from deadpool.agent.health.readings import Health, read_health
from deadpool.agent.health.stacks import is_stopped
from deadpool.agent.logs.writer import Logs
from deadpool.agent.processes.checkpoint_writer import CheckpointWriterProcess
from deadpool.agent.processes.ranks import Processes, kill_children
from deadpool.agent.processes.side_process import SideProcess
from deadpool.agent.processes.store import StoreProcess
from deadpool.agent.processes.warm import WarmProcess
from deadpool.agent.vault.folder import Vault
from deadpool.proto.call_record import Head
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import Heartbeat, RankProgress, Reading

_STRAYS_S = 2.0  # for what outlives its parent's end, at the node's end
_LOGS_S = 1.0  # for the logs to reach their files


@dataclass(slots=True, kw_only=True)
class Machinery:
    config: JobConfig
    vault: Vault
    records: Records
    logs: Logs
    warm: WarmProcess
    store: StoreProcess
    processes: Processes
    checkpoints: CheckpointWriterProcess
    health: Health = field(default_factory=Health)  # as it was last seen

    @property
    def sides(self) -> tuple[SideProcess, ...]:
        return self.checkpoints.side, self.store.side

    def heads(self, core: NodeCore) -> dict[int, Head]:
        """Returns what the present process of each rank has written at the head of its call record."""
        return {rank: self.records.head(rank, process.pid) for rank, process in sorted(core.ranks().items())}

    def heartbeat(self, core: NodeCore, readings: tuple[Reading, ...]) -> Heartbeat:
        with left_out():
            self.health = read_health()
        health, ranks = self.health, core.playing()
        return Heartbeat(
            generation=core.generation,
            ranks=tuple(
                RankProgress(
                    rank=rank,
                    pid=ranks[rank].pid,
                    step=head.step,
                    commit_step=head.commit_step,
                    steps_done=head.steps_done,
                    exposed_stall_s=head.stall_ns / 1e9,
                    stopped=is_stopped(ranks[rank].pid),
                )
                for rank, head in self.heads(core).items()
                if rank in ranks
            ),
            wall_s=time.time(),
            cpu_share=health.cpu_share,
            memory_share=health.memory_share,
            shm_free_bytes=health.shm_free_bytes,
            standins_ready=core.standins_ready(),
            readings=readings,
        )

    def sweep(self, *, strict: bool) -> None:
        """Reaps and kills orphans; see Processes.sweep."""
        with left_out():
            self.processes.sweep({self.warm.pid, *(side.pid for side in self.sides)}, strict=strict)

    def signal_all(self, signal_number: int) -> None:
        """Sends the signal to every process of the node but this one."""
        self.processes.signal_all(signal_number)
        for pid in (self.warm.pid, *(side.pid for side in self.sides)):
            if pid:
                os.kill(pid, signal_number)

    def kill_now(self) -> None:
        """SIGKILL to every process, waiting for nothing."""
        self.processes.kill_now()
        for side in self.sides:
            side.kill()
        self.warm.kill()

    def remove(self) -> None:
        """Ends what still runs and removes the vault."""
        for side in self.sides:
            side.close()
        self.warm.close()
        with left_out():
            kill_children(_STRAYS_S)
        self.records.close()
        with left_out():  # the launcher removes it, or the next agent
            self.vault.remove()
        self.logs.close(_LOGS_S)
