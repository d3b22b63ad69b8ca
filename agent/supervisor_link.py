"""The agent's stream to the supervisor: opened with Hello, opened again for as long as it takes.

Messages sent while there is no stream wait for the next one, except beats. The ranks never notice that the supervisor is away.
"""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from deadpool.agent.conversation import Conversation
from deadpool.proto import agent_supervisor_pb2 as pb
from deadpool.proto.agent_supervisor_pb2_grpc import SupervisorStub
from deadpool.proto.convert import decode_order, encode_agent_message
from deadpool.proto.errors import UnavailableError
from deadpool.proto.messages import AgentMessage, Beat, Hello, Order, Welcome
from deadpool.proto.secret import TOKEN_KEY

_log = logging.getLogger(__name__)
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 2.0
_ENDPOINT_POLL_S = 0.02
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),  # no backoff left over from the channel before
    ("grpc.enable_http_proxy", 0),
)


class SupervisorLink:
    """`endpoint`: HOST:PORT, else what `endpoint.json` of the job's folder says at each attempt (it may be a new one).

    `hello()` is asked for at each opening; `on_order(order)` is called in the loop's thread, in order.
    """

    def __init__(
        self, job_dir: Path, endpoint: str | None, token: str, hello: Callable[[], Hello], on_order: Callable[[Order], None]
    ) -> None:
        self._job_dir, self._endpoint, self._token = job_dir, endpoint, token
        self._hello, self._on_order = hello, on_order
        self._conversation = Conversation()
        self._changed = asyncio.Event()
        self._open = False
        self._finishing = False

    def send(self, message: AgentMessage) -> None:
        if isinstance(message, Beat) and not self._open:
            return
        self._conversation.say(message)
        self._changed.set()

    async def run(self) -> None:
        """Keeps a stream open until `finish`."""
        failures = 0
        said = ""
        while not self._finishing:
            try:
                endpoint = await self._find()
                await self._converse(endpoint)
                failures, reason = 0, "the supervisor closed the stream"
            except grpc.aio.AioRpcError as error:
                failures = 0 if self._open else failures + 1
                reason = f"{error.code().name}: {error.details()}"
            except (UnavailableError, asyncio.InvalidStateError) as error:
                failures, reason = failures + 1, str(error)
            self._open = False
            if self._finishing:
                return
            if reason != said:
                _log.warning("no supervisor (%s); the ranks go on, trying again", reason)
                said = reason
            await asyncio.sleep(random.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(failures, 4))))

    async def finish(self, timeout_s: float) -> None:
        """Sends what is left, closes the stream and ends `run`; gives up after the timeout."""
        self._finishing = True
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    await asyncio.sleep(0.005)

    async def _find(self) -> str:
        if self._endpoint is not None:
            return self._endpoint
        path = self._job_dir / "endpoint.json"
        while not path.exists():
            if not self._job_dir.exists():
                raise UnavailableError(f"{self._job_dir} is gone")
            await asyncio.sleep(_ENDPOINT_POLL_S)
        return str(json.loads(path.read_text())["endpoint"])

    async def _converse(self, endpoint: str) -> None:
        async with grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS) as channel:
            call = SupervisorStub(channel).Attend(metadata=((TOKEN_KEY, self._token),))
            await call.write(encode_agent_message(self._conversation.hello(self._hello())))
            writer = asyncio.create_task(self._write(call))
            try:
                while (wire := await call.read()) is not grpc.aio.EOF:
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
