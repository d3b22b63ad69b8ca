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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

from deadpool.agent import events, fault_injection
from deadpool.agent.core import NodeCore
from deadpool.agent.events import Command, Event
from deadpool.agent.health.call_records import Records
from deadpool.agent.health.fd_exhaustion import AGAIN_S, left_out, out_of_files
from deadpool.agent.health.gpus import Gpus, open_nvml
from deadpool.agent.health.host_pressure import Watch
from deadpool.agent.health.readings import VAULT_ROOT
from deadpool.agent.health.stacks import is_stopped, save_stacks
from deadpool.agent.logs.routing import View, quiet, view_of_rank
from deadpool.agent.logs.writer import Logs
from deadpool.agent.node_resources import Machinery
from deadpool.agent.processes.checkpoint_writer import CheckpointWriterProcess
from deadpool.agent.processes.environment import node_environment, socket_path
from deadpool.agent.processes.ranks import Exit, Processes
from deadpool.agent.processes.store import StoreProcess
from deadpool.agent.processes.warm import WarmProcess, error_path
from deadpool.agent.rank_streams import RankStreams
from deadpool.agent.service import serve
from deadpool.agent.supervisor_link.discovery import Whereabouts
from deadpool.agent.supervisor_link.failover import Successor
from deadpool.agent.supervisor_link.stream import SupervisorLink
from deadpool.agent.vault.folder import Vault
from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.host.addresses import interface_of
from deadpool.host.errors import ConfigError
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import (
    NO_STEP,
    CallReport,
    Hello,
    JobSignalled,
    Order,
    Stop,
    Stopped,
    VaultReport,
)
from deadpool.proto.stacks import stacks_path

_log = logging.getLogger(__name__)
_PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"  # torchrun's variable
_WATCH_S = 0.003  # how often call records are read while an injection waits for its moment
_VERDICT_S = 15.0  # for the supervisor that this node hosts to hear of everybody's end
_FORSAKEN_GRACE_S = 5.0
_TURNS = 8  # nodes without an index start a lost supervisor after one of so many waits
_LAST_WORDS_S = 1.0  # for Stopped to reach the supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArguments:
    """What an agent is started with. `host`: the address at which other nodes reach this one. `open_files`: that it was allowed.

    `shared`: where each supervisor writes its endpoint, if not in `job_dir`. `remote`: the launcher may be on another machine.
    `journal`: the job's folder there; this node may then start the supervisor, with these further arguments.
    """

    job_dir: Path
    node_id: str
    hint: int
    host: str
    supervisor: str | None
    token: str
    open_files: int
    shared: Path | None = None
    remote: bool = False
    ends_as_job: bool = False  # its exit code is the job's, for a launcher that has no supervisor to tell it
    journal: Path | None = None
    for_supervisor: tuple[str, ...] = ()


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
        self._successor: Successor | None = None
        if arguments.journal is not None:
            index = arguments.hint if arguments.hint >= 0 else 1 + zlib.crc32(arguments.node_id.encode()) % _TURNS
            own = (arguments.journal, arguments.job_dir, arguments.host, index, arguments.for_supervisor)
            self._successor = Successor(*own)
        self._link = SupervisorLink(
            Whereabouts(arguments.job_dir, arguments.supervisor, arguments.shared, self._successor),
            arguments.token,
            self._hello,
            self._ordered,
            self._forsaken if arguments.remote or arguments.journal is not None else None,
        )
        self._incarnation = time.time_ns()
        self._gpus = Gpus(open_nvml())
        self._gpus.start()
        self._machinery: Machinery | None = None
        self._events: deque[Event] = deque()
        self._handling = False
        self._ranks = RankStreams(self._core, lambda: self._machinery, self.dispatch)
        self._timer: asyncio.TimerHandle | None = None
        self._watching = False
        self._host = Watch()
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
            await self._link.finish(_LAST_WORDS_S)
            link.cancel()
            if self._successor is not None:
                await self._successor.end(politely_s=_VERDICT_S, tell=self._exit_code != 0)
            await server.stop(None)
            path.unlink(missing_ok=True)

    def _link_ended(self, link: asyncio.Task[None]) -> None:
        """It ends before us only by an error of ours."""
        error = None if link.cancelled() else link.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def stop(self, reason: str, grace_s: float, exit_code: int) -> None:
        """Ends the node; the second time at once. The reason is said, if there is one."""
        if reason:
            _log.info("stopping: %s", reason)
        self._exit_code = exit_code
        if self._successor is not None:
            self._successor.signal(signal.SIGTERM)  # the job ends, not only this node
        if self._ending is not None and self._machinery is not None:
            self._machinery.processes.kill_now()
        self.dispatch(events.ShutdownRequested(grace_s=grace_s))

    def signalled(self, number: int) -> None:
        """A signal for the whole job has come to this process."""
        self._link.send(JobSignalled(signal=number))

    def dispatch(self, event: Event) -> None:
        """Hands the event to the core and carries out what it wants; events that this leads to wait their turn."""
        self._events.append(event)
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
        if self._core.injections and not self._watching:
            self._watching = True
            loop.call_soon(self._watch)

    # ------------------------------------------------------------ commands

    def _carry_out(self, command: Command) -> None:
        match command:
            case events.Configure(config=config):
                self._configure(config)
            case events.Report(message=message):
                self._link.send(message)
            case events.Tell(process=process, order=order):
                self._ranks.tell(process, order)
            case events.EndNode(grace_s=grace_s, signal_number=signal_number):
                self._ending = asyncio.create_task(self._end(grace_s, signal_number))
            case _ if self._machinery is not None:
                try:
                    self._act(command, self._machinery)
                except OSError as error:
                    if not out_of_files(error):
                        raise
                    self._put_off(command, error)
            case _:
                _log.warning("no vault or logs here: %s is not obeyed", command)

    def _act(self, command: Command, node: Machinery) -> None:
        match command:
            case events.StartProcess(process=process, rank=rank, generation=generation, environment=environment):
                view = self._view(node, process, rank, generation) if rank is not None else quiet(f"standin-{process}")
                node.processes.start(process, environment, node.logs.open(view))
            case events.NameProcess(process=process, rank=rank, generation=generation):
                node.processes.log(process).rename(self._view(node, process, rank, generation))
            case events.KillProcess(process=process):
                node.processes.kill(process)
            case events.ReportVault(generation=generation):
                self._link.send(VaultReport(generation=generation, slots=node.vault.slots()))
            case events.CollectCalls(generation=generation):
                self._reporting = asyncio.create_task(self._report_calls(node, generation))
            case events.ServeStore(generation=generation):
                node.store.open(generation)
            case events.DropSnapshots():
                node.vault.drop_snapshots()
            case events.KillNode():
                node.kill_now()
                os.kill(os.getpid(), signal.SIGKILL)  # as a power cut would end it: nothing is cleared up
            case events.InjectHere():
                fault_injection.strike(command, node)
            case events.Configure() | events.Report() | events.Tell() | events.EndNode():
                raise AssertionError(f"{command} is carried out before it comes here")
            case _:
                assert_never(command)

    def _put_off(self, command: Command, error: OSError) -> None:
        """There is no descriptor for it. What the supervisor waits for is tried again, the rest the job can do without."""
        if not isinstance(command, events.ReportVault | events.ServeStore):
            _log.warning("%s is left out: %s", type(command).__name__, error)
        elif command.generation == self._core.generation:
            asyncio.get_running_loop().call_later(AGAIN_S, self._carry_out, command)

    def _view(self, node: Machinery, process: int, rank: int, generation: int) -> View:
        role = self._core.processes[process].role
        attempt = role.environment["TORCHELASTIC_RESTART_COUNT"] if role is not None else "0"
        return view_of_rank(node.config, rank, generation, attempt, os.environ.get(_PREFIX_TEMPLATE, ""))

    def _configure(self, config: JobConfig) -> None:
        """Makes what needs the configuration, and starts to warm up."""
        arguments = self._arguments
        try:
            logs = Logs(Path(config.log_dir) / arguments.node_id, config.log_bytes_max)
            vault = Vault.create(Path(VAULT_ROOT), config.job_id, arguments.node_id)
        except (ConfigError, OSError) as error:
            self.dispatch(events.LaunchRefused(reason=str(error)))
            return
        self._replicas.start(vault.folder)
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
        warm = WarmProcess(config, environment, on_forked=self._forked, on_problem=self._launch_refused, on_lost=self._warm_lost)
        self._machinery = Machinery(
            config=config,
            vault=vault,
            records=Records(vault.folder),
            logs=logs,
            warm=warm,
            store=StoreProcess(warm, logs, arguments.host, self._store_opened),
            processes=Processes(
                warm,
                error_path=lambda number: error_path(arguments.job_dir, arguments.node_id, number),
                silent=self._ranks.silent,
                on_forked=self._process_forked,
                on_exited=self._exited,
            ),
            checkpoints=CheckpointWriterProcess(
                config, warm, logs, vault_dir=vault.folder, token=arguments.token, on_written=self._link.send
            ),
        )
        warm.start()
        self._machinery.checkpoints.start()
        self._heartbeat_and_repeat()

    async def _end(self, grace_s: float, signal_number: int) -> None:
        if self._machinery is not None:
            await self._machinery.processes.end_all(grace_s, signal_number)
        if self._machinery is not None:
            await self._machinery.checkpoints.write_last(self._machinery.config.checkpoint_timeout_s)
        self._remove()
        self._link.send(Stopped())
        self._finish()

    def _finish(self) -> None:
        if not self._ended.done():
            self._ended.set_result(self._exit_code or self._job_exit_code)

    def _remove(self) -> None:
        """Ends every process and removes the vault, whatever the end. Harmless the second time."""
        node, self._machinery = self._machinery, None
        self._replicas.close()
        self._gpus.close()
        if node is not None:
            node.remove()

    # ------------------------------------------------------------ what happens

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
        )

    def _ordered(self, order: Order) -> None:
        if isinstance(order, Stop) and self._arguments.ends_as_job:
            self._job_exit_code = order.exit_code
        self.dispatch(events.OrderReceived(order=order))

    def _forsaken(self, reason: str) -> None:
        """No launcher may be here to end a node whose job has ended, or whose supervisor does not come back."""
        self.stop(reason, _FORSAKEN_GRACE_S, 1)

    def _launch_refused(self, reason: str) -> None:
        self.dispatch(events.LaunchRefused(reason=reason))

    def _store_opened(self, generation: int, port: int, error: str) -> None:
        self.dispatch(events.StoreServed(generation=generation, port=port, error=error))

    def _warm_lost(self) -> None:
        if self._machinery is not None:
            self._machinery.sweep(strict=True)

    def _forked(self, request: int, pid: int) -> None:
        assert self._machinery is not None
        sides = {side.request: side for side in self._machinery.sides}
        if request in sides:
            sides[request].forked(pid)
        else:
            self._machinery.processes.forked(request, pid)

    def _process_forked(self, process: int, pid: int) -> None:
        self.dispatch(events.ProcessForked(process=process, pid=pid))
        if self._machinery is not None and not self._machinery.warm.outstanding:
            heartbeat = self._machinery.heartbeat(self._core, self._gpus.readings)
            self._link.send(heartbeat)  # all are there: no need to wait for the next heartbeat

    def _exited(self, process: int, exit: Exit) -> None:
        playing = self._core.processes.get(process)
        self._ranks.forget(process)
        if playing is None or self._machinery is None:
            return
        step, commit_step = NO_STEP, NO_STEP
        if playing.rank is not None:
            head = self._machinery.records.head(playing.rank, playing.pid)
            step, commit_step = head.step, head.commit_step
            stacks_path(self._machinery.vault.folder, playing.pid).unlink(missing_ok=True)
        elif exit.exit_code and not playing.killed:
            _log.warning("a stand-in ended with %d before it had a rank:\n%s", exit.exit_code, exit.error or exit.log_tail)
        self.dispatch(
            events.ProcessExited(
                process=process,
                exit_code=exit.exit_code,
                signal=exit.signal,
                error=exit.error,
                log_tail=exit.log_tail,
                step=step,
                commit_step=commit_step,
            )
        )

    async def _report_calls(self, node: Machinery, generation: int) -> None:
        pids = {rank: process.pid for rank, process in sorted(self._core.ranks().items()) if process.pid}
        calls = [node.records.calls(rank, pid) for rank, pid in pids.items()]
        folder = Path(node.config.log_dir) / self._arguments.node_id
        stacks: dict[int, Path] = {}
        with left_out():
            stacks = await asyncio.to_thread(save_stacks, pids, node.vault.folder, folder, f"gen{generation}")
        ranks = [replace(each, stacks=str(stacks.get(each.rank, "")), stopped=is_stopped(each.pid)) for each in calls]
        self._link.send(CallReport(generation=generation, ranks=tuple(ranks)))

    # ------------------------------------------------------------ heartbeats and the watch

    def _heartbeat_and_repeat(self) -> None:
        if self._machinery is None:
            return
        asyncio.get_running_loop().call_later(self._machinery.config.heartbeat_every_s, self._heartbeat_and_repeat)
        self._machinery.sweep(strict=False)
        self._link.send(self._machinery.heartbeat(self._core, self._gpus.readings))
        logs = self._machinery.logs
        for trouble in self._host.look(logs.folder, logs.problem):
            self._link.send(trouble)

    def _watch(self) -> None:
        """Reads the ranks' call records every few milliseconds for as long as an injection waits."""
        self._watching = bool(self._core.injections) and self._machinery is not None
        if not self._watching or self._machinery is None:
            return
        asyncio.get_running_loop().call_later(_WATCH_S, self._watch)
        self.dispatch(events.HeadsRead(heads=self._machinery.heads(self._core), now_ns=time.monotonic_ns()))
