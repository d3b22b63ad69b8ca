"""What the agent says and looks at by the clock: heartbeats, what the host runs out of, and moments for injections."""

import asyncio
import time
from collections.abc import Callable

from deadpool.agent.core import NodeCore
from deadpool.agent.events import Event, HeadsRead
from deadpool.agent.health.gpus import Gpus
from deadpool.agent.health.host_pressure import PressureWatch
from deadpool.agent.node_resources import NodeResources
from deadpool.proto.messages import AgentMessage

_WATCH_S = 0.003  # how often call records are read while an injection waits for its moment


class Heartbeats:
    """From `start` to `stop`, in the loop's thread."""

    def __init__(
        self, core: NodeCore, gpus: Gpus, send: Callable[[AgentMessage], None], dispatch: Callable[[Event], None]
    ) -> None:
        self._core, self._gpus, self._send, self._dispatch = core, gpus, send, dispatch
        self._node: NodeResources | None = None
        self._pressure = PressureWatch()
        self._watching = False

    def start(self, node: NodeResources) -> None:
        self._node = node
        self._repeat()

    def stop(self) -> None:
        self._node = None

    def send(self) -> None:
        """Sends one now, beside the regular ones."""
        if self._node is not None:
            self._send(self._node.heartbeat(self._core, self._gpus.readings))

    def watch_injections(self) -> None:
        """Reads the ranks' call records every few milliseconds from now on, for as long as an injection waits."""
        if self._core.injections and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._watch)

    def _repeat(self) -> None:
        if self._node is None:
            return
        asyncio.get_running_loop().call_later(self._node.config.heartbeat_every_s, self._repeat)
        self._node.sweep(strict=False)
        self.send()
        for trouble in self._pressure.look(self._node.logs.folder, self._node.logs.problem):
            self._send(trouble)

    def _watch(self) -> None:
        self._watching = bool(self._core.injections) and self._node is not None
        if not self._watching or self._node is None:
            return
        asyncio.get_running_loop().call_later(_WATCH_S, self._watch)
        self._dispatch(HeadsRead(heads=self._node.heads(self._core), now_ns=time.monotonic_ns()))
