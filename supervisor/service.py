"""The gRPC servers: agents attend, people ask. Handlers convert, enqueue and answer; the token is checked on every call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from deadpool.host.addresses import join_host_port
from deadpool.host.console import tell
from deadpool.host.errors import ProtocolError
from deadpool.proto import convert
from deadpool.proto.doors import listen
from deadpool.proto.generated import agent_pb2, status_pb2, status_pb2_grpc
from deadpool.proto.grpc_options import SERVER_OPTIONS, SUPERVISOR_SERVICE
from deadpool.proto.messages import FromGroup, Hello, Said
from deadpool.proto.messages.status import Done, EventLine
from deadpool.proto.secret import TOKEN_KEY, token_matches
from deadpool.proto.version import refusal
from deadpool.supervisor.runtime import Runtime
from deadpool.supervisor.streams import RelayStream, Stream

_MAX_PENDING = 20_000  # opens in a storm of agents; the C core's own limit of 1,000 would cancel the rest
_OPTIONS = [
    *SERVER_OPTIONS,
    ("grpc.server.max_pending_requests", _MAX_PENDING),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
    ("grpc.http2.min_ping_recv_interval_without_data_ms", 500),  # agents make sure that this machine is still there
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a port that is taken must be an error
]

_Context = grpc.aio.ServicerContext[Any, Any]


class TokenCheck(grpc.aio.ServerInterceptor):
    """Refuses calls without the job's token; the first one of each peer's host is logged."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._logged: set[str] = set()
        self._refusal: Any = grpc.stream_stream_rpc_method_handler(self._refuse)  # whatever the kind of call: it reads nothing

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        shown = dict(details.invocation_metadata or ()).get(TOKEN_KEY)
        return await continuation(details) if token_matches(self._token, shown) else self._refusal

    async def _refuse(self, requests: object, context: _Context) -> None:
        host = context.peer().rsplit(":", 1)[0]
        if host not in self._logged:
            self._logged.add(host)
            tell(f"deadpool: refused a call from {host}: it does not show the job's token")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is missing or wrong")


class SupervisorService:
    """Agents' streams, as bytes: an order to thousands of them is serialized once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._refused: set[str] = set()  # reasons that were shown: an agent may come again and again

    async def Attend(self, request_iterator: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
        data = await anext(aiter(request_iterator), None)
        wire = agent_pb2.AgentMessage.FromString(data) if data is not None else None
        first = None if wire is None or wire.WhichOneof("body") is None else convert.decode_agent_message(wire)
        if not isinstance(first, Hello):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an agent's stream begins with Hello")
            return
        if reason := refusal(f"the agent of {first.node_id} ({first.host})", first.version):
            if reason not in self._refused:
                self._refused.add(reason)
                tell(f"deadpool: refused: {reason}")
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
            return
        stream = self._runtime.attendance.attend(first)
        reader = asyncio.create_task(self._read(stream, request_iterator))
        try:
            while (order := await stream.orders.get()) is not None:
                yield order
        finally:
            reader.cancel()
            self._runtime.attendance.stream_closed(stream, "its stream was closed")

    async def Relay(self, request_iterator: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
        """A relay's stream for its group."""
        data = await anext(aiter(request_iterator), None)
        first: FromGroup | None = None if data is None else convert.decode(agent_pb2.FromGroup.FromString(data))
        if first is None or not first.node_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a relay's stream begins with its name")
            return
        relay = RelayStream(first.node_id)
        self._runtime.attendance.relay_opened(relay, first.door)
        reader = asyncio.create_task(self._read_group(relay, request_iterator))
        try:
            while (told := await relay.next()) is not None:
                yield convert.encode(told).SerializeToString()
        finally:
            reader.cancel()
            self._runtime.attendance.relay_closed(relay)

    async def _read_group(self, relay: RelayStream, batches: AsyncIterator[bytes]) -> None:
        try:
            async for data in batches:
                if not self._runtime.attendance.relay_lives(relay):
                    return
                batch: FromGroup = convert.decode(agent_pb2.FromGroup.FromString(data))
                for said in batch.said:
                    self._said(relay, said)
                self._runtime.attendance.members_live(relay, batch)
        except (grpc.RpcError, ProtocolError, DecodeError) as error:
            tell(f"deadpool: the stream of {relay.node_id} for its group broke: {error}")
        self._runtime.attendance.relay_closed(relay)

    def _said(self, relay: RelayStream, said: Said) -> None:
        if said.closed:
            if (ended := relay.left(said.member)) is not None:
                self._runtime.attendance.stream_closed(ended, "its stream was closed")
            return
        stream = relay.members.get(said.member)
        wire = agent_pb2.AgentMessage.FromString(said.message)
        message = convert.decode_agent_message(wire)
        if stream is not None:
            self._runtime.attendance.heard(stream, message, wire.number, said.message)
        elif isinstance(message, Hello) and not refusal(message.node_id, message.version):
            self._runtime.attendance.attend(message, relay, said.member)

    async def _read(self, stream: Stream, messages: AsyncIterator[bytes]) -> None:
        """Ends with the agent's side of the stream, however that ends; the loss is reported immediately."""
        reason = "its stream was closed"
        try:
            async for data in messages:
                wire = agent_pb2.AgentMessage.FromString(data)
                self._runtime.attendance.heard(stream, convert.decode_agent_message(wire), wire.number, data)
        except (grpc.RpcError, ProtocolError, DecodeError) as error:
            reason = f"its stream broke: {error}"
        self._runtime.attendance.stream_closed(stream, reason)
        stream.close()


class StatusService(status_pb2_grpc.StatusServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def GetStatus(self, request: status_pb2.StatusRequest, context: _Context) -> status_pb2.JobStatus:
        status: status_pb2.JobStatus = convert.encode(self._runtime.status())
        return status

    async def Events(self, request: status_pb2.EventsRequest, context: _Context) -> AsyncIterator[status_pb2.EventLine]:
        async for line in self._runtime.events.lines(follow=request.follow):
            yield convert.encode(EventLine(json=line))

    async def Inject(self, request: status_pb2.InjectRequest, context: _Context) -> status_pb2.Done:
        error = await self._runtime.inject(request.kind, request.target, request.step)
        done: status_pb2.Done = convert.encode(Done(error=error))
        return done

    async def Drain(self, request: status_pb2.DrainRequest, context: _Context) -> status_pb2.Done:
        if request.gone:
            error = self._runtime.attendance.give_up(request.node, request.reason)
        else:
            error = await self._runtime.drain(request.node, request.reason, undo=request.undo)
        done: status_pb2.Done = convert.encode(Done(error=error))
        return done

    async def Diagnose(self, request: status_pb2.DiagnoseRequest, context: _Context) -> status_pb2.Diagnosis:
        diagnosis: status_pb2.Diagnosis = convert.encode(await self._runtime.diagnose())
        return diagnosis

    async def Stop(self, request: status_pb2.StopRequest, context: _Context) -> status_pb2.Done:
        self._runtime.stop(request.reason, 143)
        done: status_pb2.Done = convert.encode(Done())
        return done


async def serve(runtime: Runtime, *, token: str, host: str, port: int) -> tuple[grpc.aio.Server, int]:
    """Returns the started server and its port; RuntimeError when the port cannot be had."""
    server = grpc.aio.server(interceptors=[TokenCheck(token)], options=_OPTIONS)
    agents = SupervisorService(runtime)
    attend: Any = grpc.stream_stream_rpc_method_handler(agents.Attend)
    relay: Any = grpc.stream_stream_rpc_method_handler(agents.Relay)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SUPERVISOR_SERVICE, {"Attend": attend, "Relay": relay}),)
    )
    status_pb2_grpc.add_StatusServicer_to_server(StatusService(runtime), server)
    bound = listen(server, join_host_port(host, port), token)
    await server.start()
    return server, bound
