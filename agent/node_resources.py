"""What an agent has once the job's configuration is known: vault, logs, warm process, ranks' processes, store."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from deadpool.agent.arguments import NodeArguments
from deadpool.agent.core import NodeCore
from deadpool.agent.edges.pairs import MpiPairs
from deadpool.agent.health.call_records import CallRecords
from deadpool.agent.health.fd_exhaustion import skipped_when_exhausted
from deadpool.agent.health.readings import Health, anonymous_bytes, read_health, rss_bytes
from deadpool.agent.health.stacks import is_stopped, save_stacks
from deadpool.agent.logs.writer import Logs
from deadpool.agent.processes.checkpoint_writer import CheckpointWriterProcess
from deadpool.agent.processes.environment import node_environment
from deadpool.agent.processes.ranks import Exit, Processes, kill_children
from deadpool.agent.processes.side_process import SideProcess
from deadpool.agent.processes.store import StoreProcess
from deadpool.agent.processes.warm import WarmProcess, error_path
from deadpool.agent.vault.folder import Vault
from deadpool.host.addresses import interface_of
from deadpool.proto.call_record import TOKENS, Head
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import CallReport, CheckpointWritten, Heartbeat, RankProgress, Reading

_STRAYS_S = 2.0  # for what outlives its parent's end, at the node's end
_LOGS_S = 1.0  # for the logs to reach their files


class ResourcesOwner(Protocol):
    """Who learns what becomes of them, in the loop's thread. `request`: of the warm process; a rank's process has its number."""

    def forked(self, request: int, pid: int) -> None: ...

    def launch_refused(self, reason: str) -> None: ...

    def warm_lost(self) -> None: ...

    def store_opened(self, generation: int, port: int, error: str) -> None: ...

    async def silent(self, process: int) -> None: ...

    def process_forked(self, process: int, pid: int) -> None: ...

    def exited(self, process: int, exit: Exit) -> None: ...

    def checkpoint_written(self, message: CheckpointWritten) -> None: ...


@dataclass(slots=True, kw_only=True)
class NodeResources:
    config: JobConfig
    vault: Vault
    records: CallRecords
    logs: Logs
    warm: WarmProcess
    store: StoreProcess
    processes: Processes
    checkpoints: CheckpointWriterProcess
    health: Health = field(default_factory=Health)  # as it was last seen
    pairs: MpiPairs | None = None  # where replicas travel by MPI

    @classmethod
    def create(
        cls, config: JobConfig, arguments: NodeArguments, vault: Vault, logs: Logs, *, owner: ResourcesOwner
    ) -> "NodeResources":
        """Returns them, with no process started yet."""
        environment = node_environment(
            config,
            os.environ,
            job_dir=arguments.job_dir,
            vault_dir=vault.folder,
            node_id=arguments.node_id,
            host=arguments.host,
            open_files=arguments.open_files,
            interface=interface_of(arguments.host),
        )
        warm = WarmProcess(config, environment, on_forked=owner.forked, on_problem=owner.launch_refused, on_lost=owner.warm_lost)
        return cls(
            config=config,
            vault=vault,
            records=CallRecords(vault.folder),
            logs=logs,
            warm=warm,
            store=StoreProcess(warm, logs, arguments.host, owner.store_opened),
            processes=Processes(
                warm,
                error_path=lambda number: error_path(arguments.job_dir, arguments.node_id, number),
                silent=owner.silent,
                on_forked=owner.process_forked,
                on_exited=owner.exited,
            ),
            checkpoints=CheckpointWriterProcess(
                config, warm, logs, vault_dir=vault.folder, token=arguments.token, on_written=owner.checkpoint_written
            ),
        )

    @property
    def sides(self) -> tuple[SideProcess, ...]:
        return self.checkpoints.side, self.store.side

    def heads(self, core: NodeCore) -> dict[int, Head]:
        """Returns what the present process of each rank has written at the head of its call record."""
        return {rank: self.records.head(rank, process.pid) for rank, process in sorted(core.ranks().items())}

    def hold_ranks(self, core: NodeCore) -> bool:
        """Writes into each call record which step its rank must not leave yet; returns whether there is such a rank."""
        holds = core.injections.holds(core.ranks())
        for rank, process in core.ranks().items():
            self.records.hold(rank, process.pid, holds.get(rank))
        return bool(holds)

    def heartbeat(self, core: NodeCore, readings: tuple[Reading, ...]) -> Heartbeat:
        with skipped_when_exhausted():
            self.health = read_health()
        health, ranks, now_ns = self.health, core.playing(), time.monotonic_ns()
        heads = {rank: head for rank, head in self.heads(core).items() if rank in ranks}
        tokens, reported = self._reported({rank: ranks[rank].pid for rank in heads})
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
                    step_age_s=(now_ns - head.step_began_ns) / 1e9 if head.step_began_ns else 0.0,
                    stepped_s=head.stepped_ns / 1e9,
                    waited_s=head.waited_ns / 1e9 if head.waited_ns >= 0 else -1.0,
                    rss_bytes=rss_bytes(ranks[rank].pid),
                    snapshot_every=head.interval,
                    snapshot_s=head.busy_ns / 1e9,
                )
                for rank, head in heads.items()
            ),
            wall_s=time.time(),
            cpu_share=health.cpu_share,
            memory_share=health.memory_share,
            shm_free_bytes=health.shm_free_bytes,
            standins_ready=core.standins_ready(),
            hot_bytes=self._hot_bytes(core),
            readings=readings,
            until=max((head.until for head in heads.values()), default=0),
            tokens=tokens,
            reported=reported,
            sent_bytes=health.sent_bytes,
            received_bytes=health.received_bytes,
            replicated_bytes=sum(head.replicated_bytes for head in heads.values()),
        )

    def _reported(self, pids: Mapping[int, int]) -> tuple[float, tuple[Reading, ...]]:
        """Returns the tokens of all these ranks (rank -> pid), and what else their scripts have reported."""
        tokens, found = 0.0, dict[str, float]()
        for rank, pid in sorted(pids.items(), reverse=True):
            numbers = self.records.numbers(rank, pid)
            tokens += numbers.pop(TOKENS, 0.0)
            found |= numbers
        return tokens, tuple(Reading(name=name, value=value) for name, value in sorted(found.items()))

    def drop_unused_slots(self, core: NodeCore) -> None:
        """Removes the slots that were made for a process which has gone, or plays another rank, before they held anything."""
        self.vault.drop_empty_snapshots(used={*core.ranks(), *core.hot_standins()})

    def _hot_bytes(self, core: NodeCore) -> int:
        """Returns what they have taken since they were forked from the warm process; and their slots, which no rank here uses."""
        hot, ranks = core.hot_standins(), core.ranks()
        pids = [process.pid for process in hot.values() if process.pid]
        own_bytes = sum(max(0, anonymous_bytes(pid) - anonymous_bytes(self.warm.pid)) for pid in pids)
        return own_bytes + sum(self.vault.snapshot_bytes(rank) for rank in hot if rank not in ranks)

    async def call_report(self, pids: Mapping[int, int], generation: int) -> CallReport:
        """Saves the stacks of these ranks (rank -> pid) beside their logs; returns them, and what each waits for."""
        calls = [self.records.calls(rank, pid) for rank, pid in pids.items()]
        stacks: dict[int, Path] = {}
        with skipped_when_exhausted():
            stacks = await asyncio.to_thread(save_stacks, pids, self.vault.folder, self.logs.folder, f"gen{generation}")
        ranks = [replace(each, stacks=str(stacks.get(each.rank, "")), stopped=is_stopped(each.pid)) for each in calls]
        return CallReport(generation=generation, ranks=tuple(ranks))

    def sweep(self, *, strict: bool) -> None:
        """Reaps and kills orphans; see Processes.sweep."""
        with skipped_when_exhausted():
            pairs = self.pairs.pids if self.pairs is not None else set()
            self.processes.sweep({self.warm.pid, *(side.pid for side in self.sides), *pairs}, strict=strict)

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
        if self.pairs is not None:
            self.pairs.close()
        for side in self.sides:
            side.close()
        self.warm.close()
        with skipped_when_exhausted():
            kill_children(_STRAYS_S)
        self.records.close()
        with skipped_when_exhausted():  # the launcher removes it, or the next agent
            self.vault.remove()
        self.logs.close(_LOGS_S)
