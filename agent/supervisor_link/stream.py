"""The agent's stream to the supervisor: opened with Hello, opened again for as long as it takes; directly or through a relay.

Messages sent while there is no stream wait for the next one, except heartbeats. The ranks do not notice when it is away. An agent
that is routed to a relay opens its stream there first, and leaves the one that it has once it is welcomed on the other.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from deadpool.agent.relay.door import Relay
from deadpool.agent.stream_tasks import cancelled
from deadpool.agent.supervisor_link.conversation import Conversation
from deadpool.agent.supervisor_link.discovery import Discovery
from deadpool.agent.supervisor_link.failover import Failover
from deadpool.agent.supervisor_link.homing import Homing
from deadpool.host.errors import ConfigError, UnavailableError
from deadpool.proto.convert import decode_order, encode_agent_message
from deadpool.proto.doors import open_aio_channel
from deadpool.proto.generated import agent_pb2 as pb
from deadpool.proto.generated.agent_pb2_grpc import SupervisorStub
from deadpool.proto.grpc_options import CHANNEL_OPTIONS, NO_SUPERVISOR
from deadpool.proto.messages import AgentMessage, Heartbeat, Hello, Order, Route, Welcome
from deadpool.proto.secret import TOKEN_KEY

_log = logging.getLogger(__name__)
_STARTING_S = 10.0  # the first supervisor may be starting: nobody needs to hear of it
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 2.0
_LEFT_S = 0.2  # from a relay that is gone to a stream of one's own
_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),  # no backoff left over from the channel before
)
# For one try: in a storm a busy supervisor needs longer than half a second, and each try that is given up costs it as much.
_LOCAL_OPTIONS = (("grpc.min_reconnect_backoff_ms", 2000),)
_REMOTE_OPTIONS = (
    ("grpc.min_reconnect_backoff_ms", 1000),  # a machine that is gone answers no try, and closes no connection
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
)
_POLL_S = 0.25  # of what may be wrong while nothing is said
_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.AgentMessage, pb.Order]"
_WELCOME_S = 5.0


class SupervisorLink:
    """`hello()` is asked for at each opening; `on_order(order)` is called in the loop's thread, in order.

    `on_give_up(reason)`: called once when no supervisor has been there for long and none will come. `relay`: what this agent is
    for others, once it is asked to, or (`relays`) from the beginning. `patience_s`: with a relay that does not answer.
    """

    def __init__(
        self,
        discovery: Discovery,
        token: str,
        hello: Callable[[], Hello],
        on_order: Callable[[Order], None],
        on_give_up: Callable[[str], None] | None = None,
        relay: Relay | None = None,
        *,
        relays: bool = False,
    ) -> None:
        self._discovery, self._token = discovery, token
        self._failover = discovery.failover
        self._on_give_up = on_give_up
        self._hello, self._on_order = hello, on_order
        self._conversation = Conversation()
        self._changed = asyncio.Event()
        self._open = False
        self._finishing = False
        self.patience_s = 1.0
        self._homing = Homing()
        self._relay, self._relays = relay, relays
        self._call: _Call | None = None  # on which messages go out: the newest that was welcomed; None while it is being changed
        self._asked_s: float | None = None  # since when a relay owes an answer
        self._unread: asyncio.Future[Any] | None = None  # of the present call, what is still being read

    @property
    def is_open(self) -> bool:
        return self._open

    def send(self, message: AgentMessage) -> None:
        if isinstance(message, Heartbeat) and not self._open:
            return
        self._conversation.say(message)
        self._changed.set()

    async def run(self) -> None:
        """Keeps a stream open until `finish`; ConfigError when the supervisor refuses this agent, which no retry would change."""
        failures = 0
        said, alone_s, met = "", time.monotonic(), False
        while not self._finishing:
            try:
                endpoint = self._homing.door or await self._discovery.find(self._conversation.term)
                await self._converse(endpoint)
                failures, reason = 0, "the supervisor closed the stream"
                relay_lives = True
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise ConfigError(f"{endpoint}: {error.details()}") from error
                failures = 0 if self._open else failures + 1
                reason = f"{error.code().name}: {error.details()}"
                relay_lives = error.details() == NO_SUPERVISOR
            except (UnavailableError, asyncio.InvalidStateError, OSError) as error:  # OSError: what says where it listens
                failures, reason = failures + 1, str(error)
                relay_lives = False
            left = bool(self._homing.door) and not relay_lives
            self._homing.ended(relay_lives=relay_lives, now_s=time.monotonic())
            self._call = None
            alone_s = time.monotonic() if self._open else alone_s
            met |= self._open
            self._open = False
            if self._finishing:
                return
            if self._on_give_up is not None and (why := self._discovery.why_give_up(time.monotonic() - alone_s)):
                self._on_give_up(why)
                self._on_give_up = None
            if reason != said and (met or time.monotonic() - alone_s > _STARTING_S):
                _log.warning("no supervisor (%s); the ranks go on, trying again", reason)
                said = reason
            backoff_s = _LEFT_S if left else min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(failures, 4))
            await self._pause(random.uniform(0, backoff_s))

    async def _pause(self, pause_s: float) -> None:
        """Until the next try: immediately when somebody else listens."""
        before, deadline_s = self._discovery.trace(), time.monotonic() + pause_s
        while time.monotonic() < deadline_s and self._discovery.trace() == before:
            if self._failover is not None:
                self._failover.absent()
            await asyncio.sleep(self._discovery.poll_s)

    async def finish(self, timeout_s: float) -> None:
        """Sends what is left, closes the stream and ends `run`; gives up after the timeout."""
        self._finishing = True
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    await asyncio.sleep(0.005)

    async def _converse(self, endpoint: str, older: "_Call | None" = None) -> None:
        """`older`: the call of a conversation that is left once this one is welcomed."""
        own = _LOCAL_OPTIONS if self._discovery.local or self._homing.door else _REMOTE_OPTIONS
        async with open_aio_channel(endpoint, self._token, (*_OPTIONS, *own)) as channel:
            call = SupervisorStub(channel).Attend(metadata=((TOKEN_KEY, self._token),))
            await call.write(encode_agent_message(self._conversation.hello(self._hello(), moves=older is not None)))
            writer, relaying = asyncio.create_task(self._write(call)), None
            try:
                while (wire := await self._read(call)) is not grpc.aio.EOF:
                    if wire is None:  # the relay does not answer; its stream is kept until there is one to the supervisor itself
                        if await self._moved("", call):
                            return
                        continue
                    if wire.WhichOneof("body") is None:
                        continue  # the relay lives
                    order = decode_order(wire)
                    if isinstance(order, Welcome):
                        self._welcomed(order, endpoint, call, older)
                        relaying = relaying or (asyncio.create_task(self._speak_for_others(endpoint)) if self._relays else None)
                    if not self._conversation.ordered(wire.number, wire.heard):
                        continue
                    if isinstance(order, Route):
                        if order.relays and not self._relays:
                            self._relays, relaying = True, asyncio.create_task(self._speak_for_others(endpoint))
                        elif await self._moved(order.through, call):
                            return
                    else:
                        self._on_order(order)
                if not call.done() or await call.code() is not grpc.StatusCode.OK:
                    raise grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details())
            finally:
                for task in filter(None, (writer, relaying)):
                    await cancelled(task)

    def _welcomed(self, welcome: Welcome, endpoint: str, call: "_Call", older: "_Call | None") -> None:
        """A stream's first order: from now on this is the one. UnavailableError when this supervisor was superseded."""
        if not self._conversation.welcomed(welcome):
            raise UnavailableError(f"{endpoint} is of term {welcome.term}, which is over")
        if older is not None:
            older.cancel()
        self._homing.welcomed()
        self._call, self._open, self._asked_s = call, True, None
        self._changed.set()

    async def _moved(self, through: str, call: "_Call") -> bool:
        """Goes to another place, if it is another, and speaks from there until that ends. Returns False when it is still here.

        From a relay that does not welcome it in time it goes to the supervisor itself: its Hello may still arrive through it.
        """
        door, unread = self._homing.door, self._unread
        if self._relays or not self._homing.routed(through):
            return False
        self._call = self._unread = None
        try:
            await self._tried(through, call)
            if self._call is None and through and not call.done():
                self._homing.routed("")
                await self._tried("", call)
        finally:
            if self._call is not None and unread is not None:
                unread.cancel()
        if self._call is not None:
            return True
        self._homing.routed(door)
        self._call, self._unread, self._asked_s = call, unread, None
        self._changed.set()
        return False

    async def _tried(self, through: str, older: "_Call") -> None:
        """Speaks from there until that ends; returns as well when it was not welcomed there."""
        try:
            await self._converse(through or await self._discovery.find(self._conversation.term), older=older)
        except (grpc.aio.AioRpcError, UnavailableError, asyncio.InvalidStateError, OSError) as error:
            if self._call is not None:
                raise
            _log.warning("not welcomed by %s: %s", f"the relay {through}" if through else "the supervisor", error)

    @property
    def door(self) -> str:
        """Returns where the relay is through which this agent speaks, "" when it speaks for itself."""
        return self._homing.door if self._open else ""

    async def _speak_for_others(self, endpoint: str) -> None:
        assert self._relay is not None
        await self._relay.start()
        while True:
            await self._relay.run(endpoint)
            await asyncio.sleep(random.uniform(0, _BACKOFF_FIRST_S))

    async def _read(self, call: "_Call") -> Any:
        """Returns the next order on the wire, or EOF; UnavailableError when a supervisor of a higher term listens."""
        reading: asyncio.Future[Any] = self._unread or asyncio.ensure_future(call.read())
        self._unread = None
        waits = self._failover is not None or bool(self._homing.door) or self._call is None
        waiting_s = 0.0
        try:
            while not (await asyncio.wait({reading}, timeout=_POLL_S if waits else None))[0]:
                waiting_s += _POLL_S
                if self._failover is not None and self._open and self._newest_term(self._failover) > self._conversation.term > 0:
                    raise UnavailableError("another supervisor has taken over")
                if self._call is not call and waiting_s > (self.patience_s if self._homing.door else _WELCOME_S):
                    raise UnavailableError("it does not answer")
                if self._call is call and self._asked_s is not None and time.monotonic() - self._asked_s > self.patience_s:
                    self._unread = reading
                    return None
        except BaseException:
            reading.cancel()
            raise
        self._asked_s = None
        if self._failover is not None:
            self._failover.present()
        return await reading

    def _newest_term(self, failover: Failover) -> int:
        """0: the folder cannot be read now, which is no reason to leave a supervisor that answers."""
        with contextlib.suppress(OSError):
            return failover.find()[0]
        return 0

    async def _write(self, call: "_Call") -> None:
        """Sends the messages in order, while this is the call on which they go out. One that fails stays the next to be sent."""
        while True:
            while self._call is call and (said := self._conversation.next()) is not None:
                number, message = said
                await call.write(encode_agent_message(message, number=number))
                if self._call is not call:  # it changed meanwhile: whether this was heard will be known from there
                    break
                self._conversation.sent()
                if self._homing.door and isinstance(message, Heartbeat):
                    self._asked_s = self._asked_s or time.monotonic()
            if self._finishing and self._call is call and self._conversation.next() is None:
                await call.done_writing()
                return
            self._changed.clear()
            await self._changed.wait()
