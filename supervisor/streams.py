"""Where orders to an agent go out: its own stream, or that of the relay which speaks for it."""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace

from deadpool.proto.convert import order_wire
from deadpool.proto.messages import ToGroup, Told


class RelayStream:
    """A relay's stream for its group: what waits to be sent. `members`: by the numbers that the relay has given them."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.members: dict[int, Stream] = {}
        self.heard: dict[int, int] = {}  # of each that was welcomed: the number of its newest message that was acted on
        self._waiting: list[Told] = []
        self._closed = False
        self._changed = asyncio.Event()

    async def next(self) -> ToGroup | None:
        """Returns all that waits, an order to many of them once, or nothing as an answer; None at the end."""
        await self._changed.wait()
        self._changed.clear()
        waiting, self._waiting = self._waiting, []
        return None if self._closed else ToGroup(told=_together(waiting))

    def send(self, member: int, body: bytes | None, number: int, heard: int) -> None:
        """`body`: an order without its numbers; None ends the member's stream."""
        self._tell(Told(members=(member,), order=body or b"", numbers=(number,), heard=(heard,), closed=body is None))

    def send_to_all(self, body: bytes, number: int) -> None:
        """One order for all members that were welcomed."""
        if self.heard:
            numbers = (number,) * len(self.heard)
            self._tell(Told(members=tuple(self.heard), order=body, numbers=numbers, heard=tuple(self.heard.values())))

    def left(self, member: int) -> "Stream | None":
        """Returns the member's stream, which has ended; None when it was gone already."""
        self.heard.pop(member, None)
        return self.members.pop(member, None)

    def answer(self) -> None:
        """What the relay said was heard."""
        self._changed.set()

    def _tell(self, told: Told) -> None:
        self._waiting.append(told)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()


class Stream:
    """One agent's stream: orders that wait to be sent, as they are on the wire. None in the queue ends it.

    `relay`: which speaks for the agent, that is its `member`; None: it has a connection of its own. `arriving`: the agent has
    gone from another stream to this one, and has not said anything more here; it may be on its way to a third one. `welcomed`: it
    was: orders go out here from then on, and what was sent before it came is said again.
    """

    def __init__(self, node_id: str, relay: RelayStream | None = None, member: int = 0) -> None:
        self.node_id = node_id
        self.relay, self._member = relay, member
        self.arriving = self.welcomed = False
        self.orders: asyncio.Queue[bytes | None] = asyncio.Queue()

    def acted_on(self, heard: int) -> None:
        """All that the agent has said up to this number; it hears of that with each order."""
        if self.relay is not None and self.welcomed:
            self.relay.heard[self._member] = heard

    def send(self, body: bytes, *, number: int = 0, heard: int = 0) -> None:
        """`body`: the order without its numbers (convert.order_body)."""
        if self.relay is None:
            self.orders.put_nowait(order_wire(body, number=number, heard=heard))
        else:
            self.relay.send(self._member, body, number, heard)

    def close(self) -> None:
        if self.relay is None:
            self.orders.put_nowait(None)
        elif self.relay.left(self._member) is not None:
            self.relay.send(self._member, None, 0, 0)


def _together(waiting: Iterable[Told]) -> tuple[Told, ...]:
    """Puts together what follows each other and is the same order."""
    found = []
    for _, group in itertools.groupby(waiting, key=lambda each: (id(each.order), each.closed)):
        same = list(group)
        told = same[0]
        if len(same) > 1:
            told = replace(
                told,
                members=tuple(itertools.chain.from_iterable(each.members for each in same)),
                numbers=tuple(itertools.chain.from_iterable(each.numbers for each in same)),
                heard=tuple(itertools.chain.from_iterable(each.heard for each in same)),
            )
        found.append(told)
    return tuple(found)
