"""An agent's connection as the simulated supervisor has it: the agent's own, or through a relay."""

from dataclasses import dataclass, field

from sim.node import SimNode
from sim.relay import SimRelay
from sim.world import Pipe

from deadpool.proto.messages import Order


class BehindRelay:
    """The connection of an agent that speaks through a relay, both ways: its way up, and its way down."""

    def __init__(self, node: SimNode, relay: "RelayLink", member: int) -> None:
        self.node, self.relay, self._member = node, relay, member

    def send(self, order: tuple[int, int, Order], *, twice: bool = False) -> None:
        self.relay.down.send([(self._member, order)])

    def close(self) -> None:
        if self.relay.members.pop(self._member, None) is not None:
            self.relay.down.send([(self._member, None)])


@dataclass(slots=True)
class RelayLink:
    """`members`: by the numbers that the relay has given them."""

    relay: SimRelay
    down: Pipe
    members: dict[int, BehindRelay] = field(default_factory=dict)


Link = Pipe | BehindRelay
