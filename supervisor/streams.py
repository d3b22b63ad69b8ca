"""Where orders to an agent go out: its own stream, or that of the relay which speaks for it."""

import asyncio

from deadpool.proto.convert import order_wire
from deadpool.proto.messages import ToGroup, Told


class RelayStream:
    """A relay's stream for its group: what waits to be sent. `members`: by the numbers that the relay has given them.

    What waits: (member, order without its numbers or None for the end of its stream, number, heard).
    """

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.members: dict[int, Stream] = {}
        self._waiting: list[tuple[int, bytes | None, int, int]] = []
        self._closed = False
        self._changed = asyncio.Event()

    async def next(self) -> ToGroup | None:
        """Returns all that waits, an order to many of them once, or nothing as an answer; None at the end."""
        await self._changed.wait()
        self._changed.clear()
        waiting, self._waiting = self._waiting, []
        return None if self._closed else ToGroup(told=_told(waiting))

    def send(self, member: int, body: bytes | None, number: int, heard: int) -> None:
        self._waiting.append((member, body, number, heard))
        self._changed.set()

    def answer(self) -> None:
        """What the relay said was heard."""
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()


class Stream:
    """One agent's stream: orders that wait to be sent, as they are on the wire. None in the queue ends it.

    `relay`: which speaks for the agent, that is its `member`; None: it has a connection of its own. `arriving`: the agent has
    gone from another stream to this one, and has not said anything more here; it may be on its way to a third one.
    """

    def __init__(self, node_id: str, relay: RelayStream | None = None, member: int = 0) -> None:
        self.node_id = node_id
        self.relay, self._member = relay, member
        self.arriving = False
        self.orders: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, body: bytes, *, number: int = 0, heard: int = 0) -> None:
        """`body`: the order without its numbers (convert.order_body)."""
        if self.relay is None:
            self.orders.put_nowait(order_wire(body, number=number, heard=heard))
        else:
            self.relay.send(self._member, body, number, heard)

    def close(self) -> None:
        if self.relay is None:
            self.orders.put_nowait(None)
        elif self.relay.members.pop(self._member, None) is not None:
            self.relay.send(self._member, None, 0, 0)


def _told(waiting: list[tuple[int, bytes | None, int, int]]) -> tuple[Told, ...]:
    """Puts together what follows each other and is the same order."""
    found: list[list[tuple[int, bytes | None, int, int]]] = []
    for each in waiting:
        if found and found[-1][0][1] is each[1]:
            found[-1].append(each)
        else:
            found.append([each])
    return tuple(
        Told(
            members=tuple(member for member, *_ in group),
            order=group[0][1] or b"",
            numbers=tuple(number for _, _, number, _ in group),
            heard=tuple(heard for *_, heard in group),
            closed=group[0][1] is None,
        )
        for group in found
    )
