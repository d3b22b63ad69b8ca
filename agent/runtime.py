"""The agent's one loop: every event goes to the core, every command of the core is carried out here. One thread, no locks.

(The replica receiver and the log writers have threads of their own; they share files with the loop and nothing else.)
"""

import asyncio
import logging
import os
import signal
import time
import traceback
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, assert_never

from deadpool.agent import events, fault_injection, needs
from deadpool.agent.arguments import NodeArguments
from deadpool.agent.core import NodeCore
from deadpool.agent.edges.launcher import find_launcher
from deadpool.agent.edges.pairs import MpiPairs
from deadpool.agent.events import Command, Event
from deadpool.agent.gathering import GATHERED
from deadpool.agent.health.fd_exhaustion import RETRY_S, is_exhaustion
from deadpool.agent.health.gpus import Gpus, open_nvml
from deadpool.agent.heartbeats import Heartbeats
from deadpool.agent.logs.moments import Moments
from deadpool.agent.logs.routing import LogRoutes, file_only, rank_routes
from deadpool.agent.logs.writer import Logs
from deadpool.agent.node_resources import NodeResources
from deadpool.agent.processes.environment import socket_path
from deadpool.agent.processes.ranks import Exit
from deadpool.agent.rank_streams import RankStreams
from deadpool.agent.relay.door import Relay
from deadpool.agent.service import serve
from deadpool.agent.supervisor_link.discovery import Discovery
from deadpool.agent.supervisor_link.failover import Failover
from deadpool.agent.supervisor_link.stream import SupervisorLink
from deadpool.agent.vault.folder import Vault
from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.deploy.slurm.topology import domain_of
from deadpool.host.errors import ConfigError
from deadpool.host.limits import no_process_left, too_few_open_files
from deadpool.host.vault_folders import VAULT_ROOT
from deadpool.proto.call_record import Head, record_counts, record_path
from deadpool.proto.config import JobConfig, Transport
from deadpool.proto.messages import (
    CheckpointWritten,
    Endpoint,
    Hello,
    JobSignalled,
    Order,
    Stop,
    Stopped,
    VaultReport,
)
from deadpool.proto.stacks import stacks_path
from deadpool.proto.version import own_version

_log = logging.getLogger(__name__)
_PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"  # torchrun's variable
_SUPERVISOR_END_S = 15.0  # for the supervisor that this node hosts to hear of everybody's end
_GIVE_UP_GRACE_S = 5.0
_FAILOVER_TURNS = 8  # nodes without an index start a lost supervisor after one of so many waits
_LAST_WORDS_S = 1.0  # for Stopped to reach the supervisor


class NodeRuntime:
    """One agent. `run` returns its exit code."""

    def __init__(self, arguments: NodeArguments) -> None:
        self._arguments = arguments
        self._core = NodeCore(
            node_id=arguments.node_id,
            hint=arguments.hint,
            host=arguments.host,
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        )
        self._replicas = ReplicaServer(arguments.host, arguments.token)
        self._failover: Failover | None = None
        if arguments.journal is not None:
            index = arguments.hint if arguments.hint >= 0 else 1 + zlib.crc32(arguments.node_id.encode()) % _FAILOVER_TURNS
            own = (arguments.journal, arguments.job_dir, arguments.host, index, arguments.for_supervisor)
            self._failover = Failover(*own)
        self._relay = Relay(arguments.node_id, arguments.host, arguments.token)
        self._link = SupervisorLink(
            Discovery(arguments.job_dir, arguments.supervisor, arguments.shared, self._failover),
            arguments.token,
            self._hello,
            self._ordered,
            self._give_up if arguments.remote or arguments.journal is not None else None,
            self._relay,
        )
        self._incarnation = time.time_ns()
        self._gpus = Gpus(open_nvml())
        self._gpus.start()
        self._resources: NodeResources | None = None
        self._moments: Moments | None = None
        self._events: deque[Event] = deque()
        self._handling = False
        self._ranks = RankStreams(self._core, lambda: self._resources, self.dispatch)
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeats = Heartbeats(self._core, self._gpus, self._link.send, self.dispatch)
        self._metrics = ExitStack()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._exit_code = 0
        self._job_exit_code = 0

    async def run(self) -> int:
        path = socket_path(self._arguments.job_dir, self._arguments.node_id)
        server = await serve(path, self._arguments.token, self._ranks)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._callback_failed)
        loop.set_default_executor(ThreadPoolExecutor())  # asyncio imports it at its first use, perhaps with no descriptor left
        link = asyncio.create_task(self._link.run())
        link.add_done_callback(self._link_ended)
        try:
            return await self._ended
        finally:
            self._remove()
            await self._relay.close(_LAST_WORDS_S)
            await self._link.finish(_LAST_WORDS_S)
            link.cancel()
            if self._failover is not None:
                await self._failover.end(politely_s=_SUPERVISOR_END_S, tell=self._exit_code != 0)
            await server.stop(None)
            path.unlink(missing_ok=True)

    def _link_ended(self, link: asyncio.Task[None]) -> None:
        """It ends before us only by an error: ours, or the supervisor has refused this agent for good."""
        error = None if link.cancelled() else link.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def stop(self, reason: str, grace_s: float, exit_code: int) -> None:
        """Ends the node; the second time immediately. The reason is said, if there is one."""
        if reason:
            _log.info("stopping: %s", reason)
        self._exit_code = exit_code
        if self._failover is not None:
            self._failover.signal(signal.SIGTERM)  # the job ends, not only this node
        if self._ending is not None and self._resources is not None:
            self._resources.processes.kill_now()
        self.dispatch(events.ShutdownRequested(grace_s=grace_s))

    @property
    def is_set_up(self) -> bool:
        """Whether it has heard what its job is, and can play its part."""
        return self._resources is not None

    def signalled(self, number: int) -> None:
        """A signal for the whole job has come to this process."""
        self._link.send(JobSignalled(signal=number))

    def dispatch(self, event: Event) -> None:
        """Hands the event to the core and carries out what it wants; events that this leads to wait their turn."""
        self._events.append(event)
        if isinstance(event, events.RankSpoke) and isinstance(event.message, GATHERED) and self._moments is not None:
            self._moments.said(event.message)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                commands = self._core.handle(self._events.popleft(), now_s=time.monotonic())
                self._replicas.fence(self._core.generation)  # before any report of what the vault holds
                for command in commands:
                    self._carry_out(command)
        except Exception as error:
            self._fail(error)
        finally:
            self._handling = False
        self._arm()

    def _tick(self) -> None:
        try:
            for command in self._core.tick(now_s=time.monotonic()):
                self._carry_out(command)
        except Exception as error:
            self._fail(error)
        self._arm()

    def _fail(self, error: Exception) -> None:
        """An agent that does not know what it does must not go on: the node is lost, and a spare takes its place."""
        if not isinstance(error, ConfigError) and not no_process_left(error):  # those are one line, as it ends
            _log.critical("the agent of %s fails", self._arguments.node_id, exc_info=error)
        if not self._ended.done():
            self._ended.set_exception(error)

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that nobody caught. gRPC's own are only said."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Exception) and any(
            str(frame.f_globals.get("__name__")).startswith("deadpool.") for frame, _ in traceback.walk_tb(error.__traceback__)
        ):
            self._fail(error)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_s = self._core.next_deadline_s()
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, deadline_s - time.monotonic()) if deadline_s is not None else None
        self._timer = loop.call_later(delay_s, self._tick) if delay_s is not None else None
        self._heartbeats.watch_injections()

    # ------------------------------------------------------------ commands

    def _carry_out(self, command: Command) -> None:
        match command:
            case events.Configure(config=config):
                self._configure(config)
            case events.Report(message=message):
                self._link.send(message)
                if self._moments is not None and not isinstance(message, GATHERED):  # those were written when they were said
                    self._moments.said(message)
            case events.Tell(process=process, order=order):
                self._ranks.tell(process, order)
            case events.EndNode(grace_s=grace_s, signal_number=signal_number):
                self._ending = asyncio.create_task(self._end(grace_s, signal_number))
            case _ if self._resources is not None:
                try:
                    self._act(command, self._resources)
                except OSError as error:
                    if not is_exhaustion(error):
                        raise
                    self._put_off(command, error)
            case _:
                _log.warning("no vault or logs here: %s is not obeyed", command)

    def _act(self, command: Command, node: NodeResources) -> None:
        match command:
            case events.StartProcess(process=process, rank=rank, generation=generation, environment=environment):
                routes = self._routes(node, process, rank, generation) if rank is not None else file_only(f"standin-{process}")
                node.processes.start(process, environment, node.logs.open(routes))
            case events.NameProcess(process=process, rank=rank, generation=generation):
                node.processes.log(process).rename(self._routes(node, process, rank, generation))
                record_counts(node.vault.folder, rank, self._core.processes[process].pid)
            case events.KillProcess(process=process):
                node.processes.kill(process)
            case events.ReportVault(generation=generation):
                self._link.send(VaultReport(generation=generation, slots=node.vault.slots()))
            case events.CollectCalls(generation=generation):
                self._reporting = asyncio.create_task(self._report_calls(node, generation))
            case events.ServeStore(generation=generation):
                node.store.open(generation)
            case events.PrepareStore():
                node.store.prepare()
            case events.UseEdges(generation=generation, holders=holders):
                if node.pairs is not None:
                    node.pairs.wanted(holders, generation)
            case events.DropSnapshots():
                node.vault.drop_snapshots()
            case events.DropUnusedSlots():
                node.drop_unused_slots(self._core)
            case events.KillNode():
                node.kill_now()
                os.kill(os.getpid(), signal.SIGKILL)  # as a power cut would end it: nothing is cleared up
            case events.InjectHere():
                fault_injection.inject(command, node)
            case events.Configure() | events.Report() | events.Tell() | events.EndNode():
                raise AssertionError(f"{command} is carried out before it comes here")
            case _:
                assert_never(command)

    def _put_off(self, command: Command, error: OSError) -> None:
        """There is no descriptor for it. What the supervisor waits for is tried again, the rest the job can do without."""
        if not isinstance(command, events.ReportVault | events.ServeStore):
            _log.warning("%s is left out: %s", type(command).__name__, error)
        elif command.generation == self._core.generation:
            asyncio.get_running_loop().call_later(RETRY_S, self._carry_out, command)

    def _routes(self, node: NodeResources, process: int, rank: int, generation: int) -> LogRoutes:
        role = self._core.processes[process].role
        attempt = role.environment["TORCHELASTIC_RESTART_COUNT"] if role is not None else "0"
        return rank_routes(node.config, rank, generation, attempt, os.environ.get(_PREFIX_TEMPLATE, ""))

    def _configure(self, config: JobConfig) -> None:
        """Makes what needs the configuration, and starts to warm up."""
        arguments = self._arguments
        if reason := too_few_open_files(needs.open_files(config)):
            self.dispatch(events.LaunchRefused(reason=reason))
            return
        try:
            launcher = find_launcher() if config.h2h is Transport.MPI else None
            logs = Logs(Path(config.log_dir) / arguments.node_id, config.log_bytes_max)
            vault = Vault.create(Path(VAULT_ROOT), config.job_id, arguments.node_id)
        except (ConfigError, OSError, RuntimeError) as error:
            self.dispatch(events.LaunchRefused(reason=no_process_left(error) or str(error)))
            return
        self._link.patience_s = config.heartbeat_timeout_s / 3
        self._relay.configure(config)
        self._replicas.start(vault.folder)
        self._moments = Moments(logs.folder)
        self._resources = NodeResources.create(config, arguments, vault, logs, owner=self)
        if launcher is not None:
            own = Endpoint(node_id=arguments.node_id, host=arguments.host, port=self._replicas.port)
            self._resources.pairs = MpiPairs(launcher, own, vault.folder, config.job_id, arguments.job_dir, self._link.send)
        self._resources.warm.start()
        self._resources.checkpoints.start()
        self._heartbeats.start(self._resources, self._serve_metrics(self._resources))

    def _serve_metrics(self, node: NodeResources) -> int:
        """Returns at which port; 0: the job wants none, or there is no free one, which is no reason to go without the node."""
        if node.config.metrics_port is None:
            return 0
        from deadpool.agent.health import metrics  # its library is loaded only where it is asked for

        def measure() -> metrics.NodeMeasures:
            """In a thread: takes values that the loop replaces as a whole."""
            return metrics.NodeMeasures(
                job_id=node.config.job_id,
                node_id=self._arguments.node_id,
                heartbeat=self._heartbeats.last,
                connected=self._link.is_open,
                usage=self._heartbeats.pressure.last,
                troubles=self._heartbeats.pressure.present,
                replicas_received=self._replicas.replicas_received,
                replica_bytes_received=self._replicas.replica_bytes_received,
                vault_bytes=metrics.folder_bytes(node.vault.folder),
            )

        serving = metrics.serving(measure, host=self._arguments.host, after_port=node.config.metrics_port)
        try:
            return self._metrics.enter_context(serving)
        except OSError as error:
            _log.warning("no metrics of this node: no port after %d is free: %s", node.config.metrics_port, error.strerror)
            return 0

    async def _end(self, grace_s: float, signal_number: int) -> None:
        if self._resources is not None:
            await self._resources.processes.end_all(grace_s, signal_number)
        if self._resources is not None:
            await self._resources.checkpoints.write_last(self._resources.config.checkpoint_timeout_s)
        self._remove()
        self._link.send(Stopped())
        self._finish()

    def _finish(self) -> None:
        if not self._ended.done():
            self._ended.set_result(self._exit_code or self._job_exit_code)

    def _remove(self) -> None:
        """Ends every process and removes the vault, whatever the end. Harmless the second time."""
        node, self._resources = self._resources, None
        self._heartbeats.stop()
        self._metrics.close()
        self._replicas.close()
        self._gpus.close()
        if self._moments is not None:
            self._moments.close()
        if node is not None:
            node.remove()

    # ------------------------------------------------------------ what happens (the owner of its resources)

    def _hello(self) -> Hello:
        arguments = self._arguments
        return Hello(
            node_id=arguments.node_id,
            hint=arguments.hint,
            host=arguments.host,
            port=self._replicas.port,
            pid=os.getpid(),
            generation=self._core.generation,
            incarnation=self._incarnation,
            readings=self._gpus.readings,
            version=own_version(),
            domain=domain_of(os.environ),
        )

    def _ordered(self, order: Order) -> None:
        if isinstance(order, Stop) and self._arguments.ends_as_job:
            self._job_exit_code = order.exit_code
        if self._moments is not None:
            self._moments.ordered(order, tuple(sorted(self._core.ranks())))
        self.dispatch(events.OrderReceived(order=order))

    def _give_up(self, reason: str) -> None:
        """No launcher may be here to end a node whose job has ended, or whose supervisor does not come back."""
        self.stop(reason, _GIVE_UP_GRACE_S, 1)

    def launch_refused(self, reason: str) -> None:
        self.dispatch(events.LaunchRefused(reason=reason))

    def store_opened(self, generation: int, port: int, error: str) -> None:
        self.dispatch(events.StoreServed(generation=generation, port=port, error=error))

    def warm_lost(self) -> None:
        if self._resources is not None:
            self._resources.sweep(strict=True)

    def forked(self, request: int, pid: int) -> None:
        assert self._resources is not None
        sides = {side.request: side for side in self._resources.sides}
        if request in sides:
            sides[request].forked(pid)
        else:
            self._resources.processes.forked(request, pid)

    def process_forked(self, process: int, pid: int) -> None:
        self.dispatch(events.ProcessForked(process=process, pid=pid))
        if self._resources is not None and not self._resources.warm.outstanding:
            self._heartbeats.send()  # all are there: no need to wait for the next one

    async def silent(self, process: int) -> None:
        await self._ranks.silent(process)

    def checkpoint_written(self, message: CheckpointWritten) -> None:
        self._link.send(message)

    def exited(self, process: int, exit: Exit) -> None:
        playing = self._core.processes.get(process)
        self._ranks.forget(process)
        if playing is None or self._resources is None:
            return
        head = Head()
        if playing.rank is not None:
            head = self._resources.records.head(playing.rank, playing.pid)
            stacks_path(self._resources.vault.folder, playing.pid).unlink(missing_ok=True)
            record_path(self._resources.vault.folder, playing.rank, playing.pid).unlink(missing_ok=True)  # a hot stand-in's
        elif exit.exit_code and not playing.killed:
            _log.warning("a stand-in ended with %d before it had a rank:\n%s", exit.exit_code, exit.error or exit.log_tail)
        self.dispatch(
            events.ProcessExited(
                process=process,
                exit_code=exit.exit_code,
                signal=exit.signal,
                error=exit.error,
                log_tail=exit.log_tail,
                step=head.step,
                commit_step=head.commit_step,
                yielded=head.yielded,
                script_ended=head.script_ended,
            )
        )

    async def _report_calls(self, node: NodeResources, generation: int) -> None:
        pids = {rank: process.pid for rank, process in sorted(self._core.ranks().items()) if process.pid}
        self._link.send(await node.call_report(pids, generation))
