"""What the agent says and looks at by the clock: heartbeats, what the host runs out of, and moments for injections."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from deadpool.agent.core import NodeCore
from deadpool.agent.events import Event, HeadsRead
from deadpool.agent.health.gpus import Gpus
from deadpool.agent.health.host_pressure import PressureWatch
from deadpool.agent.node_resources import NodeResources
from deadpool.proto.messages import AgentMessage, Heartbeat

_WATCH_S = 0.003  # how often call records are read while an injection waits for its moment


class Heartbeats:
    """From `start` to `stop`, in the loop's thread. `last`: the newest heartbeat."""

    def __init__(
        self, core: NodeCore, gpus: Gpus, send: Callable[[AgentMessage], None], dispatch: Callable[[Event], None]
    ) -> None:
        self._core, self._gpus, self._send, self._dispatch = core, gpus, send, dispatch
        self._node: NodeResources | None = None
        self._metrics_port = 0
        self.pressure = PressureWatch()
        self.last = Heartbeat(generation=0)
        self._watching = False

    def start(self, node: NodeResources, metrics_port: int) -> None:
        self._node, self._metrics_port = node, metrics_port
        self._repeat()

    def stop(self) -> None:
        self._node = None

    def send(self) -> None:
        """Sends one now, beside the regular ones."""
        if self._node is not None:
            self.last = replace(self._node.heartbeat(self._core, self._gpus.readings), metrics_port=self._metrics_port)
            self._send(self.last)

    def watch_injections(self) -> None:
        """Reads the ranks' call records every few milliseconds from now on, for as long as an injection waits or holds a rank."""
        if self._core.injections and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._watch)

    def _repeat(self) -> None:
        if self._node is None:
            return
        asyncio.get_running_loop().call_later(self._node.config.heartbeat_every_s, self._repeat)
        self._node.sweep(strict=False)
        self.send()
        for trouble in self.pressure.look(self._node.logs.folder, self._node.logs.problem):
            self._send(trouble)

    def _watch(self) -> None:
        if self._node is None:
            self._watching = False
            return
        holding = self._node.hold_ranks(self._core)
        self._watching = holding or bool(self._core.injections)
        if not self._watching:
            return
        asyncio.get_running_loop().call_later(_WATCH_S, self._watch)
        self._dispatch(HeadsRead(heads=self._node.heads(self._core), now_ns=time.monotonic_ns()))
