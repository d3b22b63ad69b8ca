"""The agent's gRPC service for its ranks, on a unix socket in the job's folder (0700); the token is checked as well."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from deadpool.host.errors import ConfigError, ProtocolError
from deadpool.proto.convert import decode_rank_message, encode_rank_order
from deadpool.proto.generated import rank_pb2 as pb
from deadpool.proto.generated.rank_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from deadpool.proto.grpc_options import SERVER_OPTIONS
from deadpool.proto.messages import RankMessage, RankOrder, Register
from deadpool.proto.secret import TOKEN_KEY, token_matches
from deadpool.proto.version import refusal

_SOCKET_PATH_BYTES_MAX = 107
Orders = asyncio.Queue[RankOrder]
_log = logging.getLogger(__name__)


class Ranks(Protocol):
    """Who is served. `register` returns the process that this pid is, None when it is none of this node's."""

    async def register(self, pid: int, orders: Orders) -> int | None: ...

    async def spoke(self, process: int, message: RankMessage) -> None: ...

    def left(self, process: int, orders: Orders) -> None: ...


class RankService(AgentServicer):
    """One stream per rank: Register first, then whatever both sides have to say."""

    def __init__(self, token: str, ranks: Ranks) -> None:
        self._token = token
        self._ranks = ranks

    async def Serve(self, requests: AsyncIterator[pb.RankMessage], context: Any) -> None:
        shown = dict(context.invocation_metadata() or ()).get(TOKEN_KEY)
        if not token_matches(self._token, shown):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is missing or wrong")
        try:
            first = decode_rank_message(await anext(requests, pb.RankMessage()))
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        if not isinstance(first, Register):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Register comes first")
            return
        if reason := refusal(f"the script's process {first.pid}", first.version):
            _log.warning("%s", reason)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
            return
        orders: Orders = asyncio.Queue()
        process = await self._ranks.register(first.pid, orders)
        if process is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"process {first.pid} is no rank of this node, or its rank has joined")
            return
        writer = asyncio.create_task(_write(context, orders))
        try:
            async for wire in requests:
                await self._ranks.spoke(process, decode_rank_message(wire))
        finally:
            self._ranks.left(process, orders)
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, grpc.aio.UsageError):
                await writer


async def _write(context: Any, orders: Orders) -> None:
    while True:
        await context.write(encode_rank_order(await orders.get()))


async def serve(path: Path, token: str, ranks: Ranks) -> grpc.aio.Server:
    """Returns the running server; ConfigError when the socket's path cannot be used."""
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES_MAX:
        raise ConfigError(f"{path}: too long for a socket's path; choose a shorter --job-dir")
    path.unlink(missing_ok=True)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_AgentServicer_to_server(RankService(token, ranks), server)
    try:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
    except RuntimeError as error:
        raise ConfigError(f"{path}: cannot listen ({error})") from error
    path.chmod(0o600)
    return server
