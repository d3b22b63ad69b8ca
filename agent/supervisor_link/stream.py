"""The agent's stream to the supervisor: opened with Hello, opened again for as long as it takes.

Messages sent while there is no stream wait for the next one, except heartbeats. The ranks do not notice when it is away.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from deadpool.agent.supervisor_link.conversation import Conversation
from deadpool.agent.supervisor_link.discovery import Discovery
from deadpool.agent.supervisor_link.failover import Failover
from deadpool.host.errors import ConfigError, UnavailableError
from deadpool.proto.convert import decode_order, encode_agent_message
from deadpool.proto.generated import agent_pb2 as pb
from deadpool.proto.generated.agent_pb2_grpc import SupervisorStub
from deadpool.proto.grpc_options import CHANNEL_OPTIONS
from deadpool.proto.messages import AgentMessage, Heartbeat, Hello, Order, Welcome
from deadpool.proto.secret import TOKEN_KEY

_log = logging.getLogger(__name__)
_STARTING_S = 10.0  # the first supervisor may be starting: nobody needs to hear of it
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 2.0
_ENDPOINT_POLL_S = 0.02
_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),  # no backoff left over from the channel before
)
_KEEPALIVE_OPTIONS = (  # a machine that is gone closes no connection
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
)
_TERM_POLL_S = 0.5
_WELCOME_S = 5.0


class SupervisorLink:
    """`hello()` is asked for at each opening; `on_order(order)` is called in the loop's thread, in order.

    `on_give_up(reason)`: called once when no supervisor has been there for long and none will come.
    """

    def __init__(
        self,
        discovery: Discovery,
        token: str,
        hello: Callable[[], Hello],
        on_order: Callable[[Order], None],
        on_give_up: Callable[[str], None] | None = None,
    ) -> None:
        self._discovery, self._token = discovery, token
        self._failover = discovery.failover
        self._on_give_up = on_give_up
        self._hello, self._on_order = hello, on_order
        self._conversation = Conversation()
        self._changed = asyncio.Event()
        self._open = False
        self._finishing = False

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
                endpoint = await self._discovery.find(self._conversation.term)
                await self._converse(endpoint)
                failures, reason = 0, "the supervisor closed the stream"
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise ConfigError(f"{endpoint}: {error.details()}") from error
                failures = 0 if self._open else failures + 1
                reason = f"{error.code().name}: {error.details()}"
            except (UnavailableError, asyncio.InvalidStateError, OSError) as error:  # OSError: what says where it listens
                failures, reason = failures + 1, str(error)
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
            await self._pause(random.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(failures, 4))))

    async def _pause(self, pause_s: float) -> None:
        """Until the next try: immediately when somebody else listens."""
        before, deadline_s = self._discovery.trace(), time.monotonic() + pause_s
        while time.monotonic() < deadline_s and self._discovery.trace() == before:
            if self._failover is not None:
                self._failover.absent()
            await asyncio.sleep(_ENDPOINT_POLL_S)

    async def finish(self, timeout_s: float) -> None:
        """Sends what is left, closes the stream and ends `run`; gives up after the timeout."""
        self._finishing = True
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    await asyncio.sleep(0.005)

    async def _converse(self, endpoint: str) -> None:
        options = _OPTIONS if self._discovery.local else (*_OPTIONS, *_KEEPALIVE_OPTIONS)
        async with grpc.aio.insecure_channel(endpoint, options=options) as channel:
            call = SupervisorStub(channel).Attend(metadata=((TOKEN_KEY, self._token),))
            await call.write(encode_agent_message(self._conversation.hello(self._hello())))
            writer = asyncio.create_task(self._write(call))
            try:
                while (wire := await self._read(call)) is not grpc.aio.EOF:
                    order = decode_order(wire)
                    if isinstance(order, Welcome) and not self._conversation.welcomed(order):
                        raise UnavailableError(f"{endpoint} is of term {order.term}, which is over")
                    self._conversation.ordered(wire.number, wire.heard)
                    if not self._open:
                        self._open = True
                        self._changed.set()
                    self._on_order(order)
                if not call.done() or await call.code() is not grpc.StatusCode.OK:
                    raise grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details())
            finally:
                writer.cancel()
                with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await writer

    async def _read(self, call: "grpc.aio.StreamStreamCall[pb.AgentMessage, pb.Order]") -> Any:
        """Returns the next order on the wire, or EOF; UnavailableError when a supervisor of a higher term listens."""
        reading: asyncio.Future[Any] = asyncio.ensure_future(call.read())
        waiting_s = 0.0
        try:
            while not (await asyncio.wait({reading}, timeout=None if self._failover is None else _TERM_POLL_S))[0]:
                assert self._failover is not None
                waiting_s += _TERM_POLL_S
                if self._open and self._newest_term(self._failover) > self._conversation.term > 0:
                    raise UnavailableError("another supervisor has taken over")
                if not self._open and waiting_s > _WELCOME_S:
                    raise UnavailableError("it does not answer")
        except BaseException:
            reading.cancel()
            raise
        if self._failover is not None:
            self._failover.present()
        return await reading

    def _newest_term(self, failover: Failover) -> int:
        """0: the folder cannot be read now, which is no reason to leave a supervisor that answers."""
        with contextlib.suppress(OSError):
            return failover.find()[0]
        return 0

    async def _write(self, call: "grpc.aio.StreamStreamCall[pb.AgentMessage, pb.Order]") -> None:
        """Sends the messages in order. One that fails stays the next to be sent."""
        while True:
            while self._open and (said := self._conversation.next()) is not None:
                number, message = said
                await call.write(encode_agent_message(message, number=number))
                self._conversation.sent()
            if self._finishing and self._conversation.next() is None:
                await call.done_writing()
                return
            self._changed.clear()
            await self._changed.wait()
