"""A simulated relay: the real RelayGroup between the connections of its group and one to the supervisor."""

from typing import TYPE_CHECKING

from sim.world import Pipe

from deadpool.agent.relay.group import RelayGroup
from deadpool.proto import convert, messages

if TYPE_CHECKING:
    from sim.node import SimNode

_BEATS_S = 1.0
_LOOK_S = 0.25
_SILENCE_S = 4.0
_Orders = list[tuple[int, tuple[int, int, messages.Order] | None]]  # (member, numbered order; None: its stream ends)


class SimRelay:
    """On one life of a node. `open`: it has a supervisor."""

    def __init__(self, node: "SimNode") -> None:
        self.node, self.world, self.supervisor = node, node.world, node.supervisor
        self.open = False
        self.up: Pipe | None = None
        self.down: Pipe | None = None
        self.cut_until_s = 0.0  # towards the supervisor only
        self._group = RelayGroup()
        self._members: dict[int, tuple[Pipe, Pipe]] = {}  # up, down
        self._cut_off: dict[Pipe, bool] = {}  # why the relay has closed a member's connection
        self._asked_s: float | None = None
        self._flushing = False
        self.world.at(_BEATS_S, self._beat)
        self.world.at(_LOOK_S, self._look)

    def connect(self) -> None:
        """Its agent has been welcomed."""
        self.drop()
        self.down = down = Pipe(self.world, lambda orders: self._told(down, orders), lambda: self.lost(down))
        self.up = up = Pipe(
            self.world, lambda batch: self.supervisor.group_said(up, batch), lambda: self.supervisor.group_gone(up)
        )
        up.held_until_s = down.held_until_s = max(self.cut_until_s, self.node.cut_until_s)
        self.supervisor.relay_opened(self, up, down)
        self._group, self._asked_s = RelayGroup(), self.world.now_s

    def drop(self, *, cut_off: bool = False) -> None:
        """There is no supervisor: everybody behind it hears so. `cut_off`: it does not answer, perhaps this relay only."""
        if self.up is not None:
            self.up.close()
        self.up = self.down = None
        self.open = False
        members, self._members = self._members, {}
        for up, down in members.values():
            up.ended = True
            self._cut_off[down] = cut_off
            down.close()

    def die(self) -> None:
        self.drop()

    def cut(self, until_s: float) -> None:
        """Towards the supervisor."""
        self.cut_until_s = until_s
        for pipe in (self.up, self.down):
            if pipe is not None:
                pipe.held_until_s = until_s

    def hold(self, until_s: float) -> None:
        """All of the node's connections, those of the group too."""
        self.cut(until_s)
        for pipes in self._members.values():
            for pipe in pipes:
                pipe.held_until_s = until_s

    def enter(self, node: "SimNode") -> tuple[Pipe, Pipe]:
        """Returns the pipes of an agent that comes; what it says first is Hello."""
        group, numbers = self._group, list[int]()

        def heard(said: tuple[int, messages.AgentMessage]) -> None:
            if group is not self._group or not self.open:
                return
            number, message = said
            data = convert.encode_agent_message(message, number=number).SerializeToString()
            if not numbers:
                numbers.append(group.joined(data))
                self._members[numbers[0]] = up, down
            else:
                group.heard(numbers[0], message, data, now_s=self.world.now_s)
            if isinstance(message, messages.Heartbeat):
                down.send(None)
            self._flush_soon()

        def gone() -> None:
            if numbers and group is self._group and self._members.pop(numbers[0], None) is not None:
                group.left(numbers[0])
                self._flush_soon()

        down = Pipe(
            self.world, lambda order: node.receive(down, order), lambda: node.disconnected(down, relay_lives=self._lives(down))
        )
        up = Pipe(self.world, heard, gone)
        up.held_until_s = down.held_until_s = max(node.cut_until_s, self.node.cut_until_s)
        return up, down

    def _lives(self, down: Pipe) -> bool:
        return self.node.alive and not self._cut_off.get(down, False)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.world.at(0.0005, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._group.urgent:
            self._pass_on()

    def _beat(self) -> None:
        if not self.node.alive:
            return
        self.world.at(_BEATS_S, self._beat)
        self._pass_on()

    def _look(self) -> None:
        if not self.node.alive:
            return
        self.world.at(_LOOK_S, self._look)
        if self._asked_s is not None and self.world.now_s - self._asked_s > _SILENCE_S:
            self.drop(cut_off=True)
            self._asked_s = None
            self.world.at(self.world.between(0, 0.5), self._again)

    def _again(self) -> None:
        if self.node.alive and self.node.up is not None and self.node.welcomed and self.up is None:
            self.connect()

    def _pass_on(self) -> None:
        if self.up is not None:
            self._asked_s = self._asked_s or self.world.now_s
            self.up.send(self._group.take(now_s=self.world.now_s))

    def _told(self, down: Pipe, orders: _Orders) -> None:
        if self.down is not down or not self.node.alive:
            return
        self._asked_s, self.open = None, True
        for member, order in orders:
            pipes = self._members.get(member)
            if pipes is None:
                continue
            if order is None:
                del self._members[member]
                self._group.left(member)
                pipes[0].ended = True
                pipes[1].close()
            else:
                pipes[1].send(order)

    def lost(self, down: Pipe) -> None:
        """Its connection to the supervisor has ended. As long as its agent has one it opens another."""
        if self.down is down:
            self.drop()
            self.world.at(self.world.between(0, 0.5), self._again)
