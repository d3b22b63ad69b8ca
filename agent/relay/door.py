"""A relay at work: a door to which other agents come as they would to the supervisor, and one stream to that for all of them.

What passes is decided in group.py. The stream lives with the agent's own: as long as that one has a supervisor. Without it every
connection of the group ends, saying so, and those who come wait a moment for the next supervisor.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from deadpool.agent.relay.group import RelayGroup, full_s
from deadpool.agent.stream_tasks import cancelled
from deadpool.host.addresses import join_host_port
from deadpool.host.errors import ProtocolError
from deadpool.proto import convert
from deadpool.proto.config import JobConfig
from deadpool.proto.doors import listen, open_aio_channel
from deadpool.proto.generated import agent_pb2 as pb
from deadpool.proto.grpc_options import CHANNEL_OPTIONS, CUT_OFF, NO_SUPERVISOR, SERVER_OPTIONS, SUPERVISOR_SERVICE
from deadpool.proto.messages import AgentMessage, FromGroup, Heartbeat, ToGroup
from deadpool.proto.secret import TOKEN_KEY, token_matches

_log = logging.getLogger(__name__)
_COME_S = 1.0  # whoever comes waits so long for a supervisor
_LOOK_S = 0.25  # at how long the supervisor has not answered
_HEARD = b""  # an order without a body: the relay lives

_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


class Orders(Protocol):
    def put_nowait(self, order: bytes | None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """An agent's among those that come to this door, with one supervisor."""

    group: RelayGroup
    member: int


class Relay:
    """`configure` and `start` first; then `run(endpoint)` for each supervisor."""

    def __init__(self, node_id: str, host: str, token: str) -> None:
        self.silence_s = 3.0  # of the supervisor, after which it is given up
        self.beats_s = 1.0  # between two batches of heartbeats
        self._node_id, self._host, self._token = node_id, host, token
        self._server: grpc.aio.Server | None = None
        self.door = ""  # HOST:PORT, once it is open
        self._group = RelayGroup()
        self._orders: dict[int, Orders] = {}  # by member
        self._open = asyncio.Event()  # there is a supervisor
        self._changed = asyncio.Event()
        self._asked_s: float | None = None  # since when an answer is due
        self._why = NO_SUPERVISOR  # there is no supervisor

    def configure(self, config: JobConfig) -> None:
        """Before anybody comes."""
        self.silence_s, self.beats_s = 4 / 3 * config.heartbeat_timeout_s, config.heartbeat_every_s
        self._group = RelayGroup(full_s(config.nnodes + config.spares))

    async def start(self) -> None:
        """Opens the door, if it is not open."""
        if self._server is not None:
            return
        self._server = grpc.aio.server(options=[*SERVER_OPTIONS, ("grpc.so_reuseport", 0)])
        attend: Any = grpc.stream_stream_rpc_method_handler(self._attend)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SUPERVISOR_SERVICE, {"Attend": attend}),))
        port = listen(self._server, join_host_port(self._host, 0), self._token)
        await self._server.start()
        self.door = join_host_port(self._host, port)

    async def close(self, grace_s: float) -> None:
        """Waits so long for the group to leave."""
        deadline_s = time.monotonic() + grace_s
        while self._orders and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        if self._server is not None:
            await self._server.stop(None)

    async def run(self, endpoint: str) -> None:
        """Speaks for the group to the supervisor there, until that ends."""
        async with open_aio_channel(endpoint, self._token, _OPTIONS) as channel:
            call: Any = channel.stream_stream(f"/{SUPERVISOR_SERVICE}/Relay")(metadata=((TOKEN_KEY, self._token),))
            writer = asyncio.create_task(self._write(call))
            try:
                while (data := await self._read(call)) is not grpc.aio.EOF:
                    self._told(convert.decode(pb.ToGroup.FromString(data)))
            except TimeoutError:
                self._why = CUT_OFF
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._why = NO_SUPERVISOR
            finally:
                self._end()
                call.cancel()
                await cancelled(writer)

    def _end(self) -> None:
        """Nobody is there to speak to: the group is told, and begins anew with the next supervisor."""
        self._open.clear()
        self._group, self._asked_s = RelayGroup(self._group.full_s), None
        if self._orders:
            _log.warning("the group has no supervisor: %s", self._why)
        for orders in self._orders.values():
            orders.put_nowait(None)
        self._orders.clear()

    async def _write(self, call: Any) -> None:
        self._asked_s = time.monotonic()
        await call.write(convert.encode(FromGroup(node_id=self._node_id, door=self.door)).SerializeToString())
        beats_s = time.monotonic() + self.beats_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, beats_s - time.monotonic())):
                    await self._changed.wait()
            self._changed.clear()
            now_s = time.monotonic()
            if now_s < beats_s and not self._group.urgent:
                continue
            beats_s = now_s + self.beats_s
            self._asked_s = self._asked_s or now_s
            await call.write(convert.encode(self._group.take(now_s=now_s)).SerializeToString())

    async def _read(self, call: Any) -> Any:
        """Returns what the supervisor says next; TimeoutError when it does not answer."""
        reading: asyncio.Future[Any] = asyncio.ensure_future(call.read())
        try:
            while not (await asyncio.wait({reading}, timeout=_LOOK_S))[0]:
                if self._asked_s is not None and time.monotonic() - self._asked_s > self.silence_s:
                    raise TimeoutError
        except BaseException:
            reading.cancel()
            raise
        self._asked_s = None
        self._open.set()
        return await reading

    def _told(self, batch: ToGroup) -> None:
        for told in batch.told:
            for at, member in enumerate(told.members):
                orders = self._orders.get(member)
                if orders is not None:
                    number, heard = told.numbers[at], told.heard[at]
                    orders.put_nowait(None if told.closed else convert.order_wire(told.order, number=number, heard=heard))

    # ------------------------------------------------------------ the door

    async def _attend(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        shown = dict(context.invocation_metadata() or ()).get(TOKEN_KEY)
        if not token_matches(self._token, shown):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is missing or wrong")
        hello = await anext(aiter(requests), None)
        if hello is None or not await self.has_supervisor(_COME_S):
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._why)
            return
        orders: asyncio.Queue[bytes | None] = asyncio.Queue()
        place = self.enter(hello, orders)
        reader = asyncio.create_task(self._hear(place, requests, orders))
        try:
            while (order := await orders.get()) is not None:
                yield order
            if place.group is not self._group:
                await context.abort(grpc.StatusCode.UNAVAILABLE, self._why)
        finally:
            reader.cancel()
            self.left(place)

    async def _hear(self, place: GroupPlace, requests: AsyncIterator[bytes], orders: Orders) -> None:
        with contextlib.suppress(grpc.RpcError, ProtocolError, DecodeError):
            async for data in requests:
                message = convert.decode_agent_message(pb.AgentMessage.FromString(data))
                self.heard(place, message, data)
                if isinstance(message, Heartbeat):
                    orders.put_nowait(_HEARD)
        self.left(place)
        orders.put_nowait(None)

    # ------------------------------------------------------------ the group

    async def has_supervisor(self, timeout_s: float) -> bool:
        """Waits so long for one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._open.wait()
        return self._open.is_set()

    def enter(self, hello: bytes, orders: Orders) -> GroupPlace:
        """An agent has come; there is a supervisor. What is for it is put into `orders`: None, and it has to come again."""
        place = GroupPlace(self._group, self._group.joined(hello))
        self._orders[place.member] = orders
        self._changed.set()
        return place

    def heard(self, place: GroupPlace, message: AgentMessage, data: bytes) -> None:
        """`data`: the message on the wire."""
        place.group.heard(place.member, message, data, now_s=time.monotonic())
        if place.group.urgent:
            self._changed.set()

    def left(self, place: GroupPlace) -> None:
        place.group.left(place.member)
        if place.group is self._group and self._orders.pop(place.member, None) is not None:
            self._changed.set()
