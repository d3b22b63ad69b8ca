"""The streams of a node's rank processes: what they say goes to the core, orders go out to them. Served by service.py."""

import asyncio
import logging
import os
from collections.abc import Callable

from deadpool.agent import events
from deadpool.agent.core import NodeCore
from deadpool.agent.events import Event
from deadpool.agent.node_resources import NodeResources
from deadpool.agent.service import Orders
from deadpool.host.errors import ConfigError
from deadpool.proto.messages import RankMessage, RankOrder, Reserve, Reserved
from deadpool.proto.vault.layout import snapshot_slots

_log = logging.getLogger(__name__)
_EXIT_S = 3.0  # a process that has lost its stream ends itself, or exits anyhow
_REGISTER_S = 10.0  # a process can ask before the warm process has said that it exists


class RankStreams:
    """`resources()`: None until the node is configured, and once it has ended. Processes are known by the agent's numbers."""

    def __init__(self, core: NodeCore, resources: Callable[[], NodeResources | None], dispatch: Callable[[Event], None]) -> None:
        self._core, self._resources, self._dispatch = core, resources, dispatch
        self._orders: dict[int, Orders] = {}
        self._reserving: set[asyncio.Task[None]] = set()
        self._silent: dict[int, asyncio.Event] = {}  # set when nothing more will come on that process's stream

    def tell(self, process: int, order: RankOrder) -> None:
        """Does nothing when it has no stream."""
        if process in self._orders:
            self._orders[process].put_nowait(order)

    def forget(self, process: int) -> None:
        """It has ended."""
        self._orders.pop(process, None)
        self._silent.pop(process, None)

    async def register(self, pid: int, orders: Orders) -> int | None:
        node = self._resources()
        if node is None:
            return None
        process = await node.processes.find(pid, _REGISTER_S)
        if process is None or process in self._orders or process not in self._core.processes:
            return None
        self._orders[process] = orders
        self._silent[process] = asyncio.Event()
        self._dispatch(events.ProcessRegistered(process=process, pid=pid))
        return process

    async def spoke(self, process: int, message: RankMessage) -> None:
        if isinstance(message, Reserve):  # of a joiner it is not waited for: what it says next must not be late
            reserving = asyncio.create_task(self._reserve(process, message))
            self._reserving.add(reserving)
            reserving.add_done_callback(self._reserving.discard)
        elif process in self._core.processes:
            self._dispatch(events.RankSpoke(process=process, message=message))

    def left(self, process: int, orders: Orders) -> None:
        if self._orders.get(process) is orders:
            del self._orders[process]
            self._silent[process].set()
            asyncio.get_running_loop().call_later(_EXIT_S, self._end_if_mute, process)

    def _end_if_mute(self, process: int) -> None:
        """A process whose stream is gone and whose script goes on can be told nothing: it ends, and counts as failed."""
        node, playing = self._resources(), self._core.processes.get(process)
        if node is None or playing is None or process in self._orders or playing.killed:
            return
        ends = playing.rank is not None and node.records.head(playing.rank, playing.pid).script_ended
        if not ends and _exists(playing.pid):
            _log.warning("process %d lives on without its connection to this agent, and is killed", playing.pid)
            node.processes.kill(process)

    async def silent(self, process: int) -> None:
        """Returns once all that the dead process had said on its stream has been heard."""
        if process in self._silent:
            await self._silent[process].wait()

    async def _reserve(self, process: int, order: Reserve) -> None:
        node = self._resources()
        if node is None:
            return
        replica_bytes = 2 * node.config.replicas * order.replica_bytes
        try:
            await asyncio.to_thread(
                node.vault.reserve_snapshots,
                order.rank,
                order.snapshot_bytes,
                replica_bytes,
                slots=snapshot_slots(checkpoints=node.config.checkpoint_dir != "", going_back=node.config.verify_every > 1),
            )
            answer = Reserved()
        except (ConfigError, OSError) as error:
            answer = Reserved(error=str(error))
        self.tell(process, answer)
        if process not in self._core.processes or self._core.processes[process].killed:  # it went meanwhile
            node.drop_unused_slots(self._core)


def _exists(pid: int) -> bool:
    """Returns whether the process is there; a wrapper may outlive the one that had the stream, and start another."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
