"""The rank's line to its agent: one gRPC stream over the node's unix socket. Messages go from any thread; orders come on one."""

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # a forking DataLoader must not log on the user's console
import grpc

from deadpool.proto.convert import decode_rank_order, encode_rank_message
from deadpool.proto.generated import rank_pb2, rank_pb2_grpc
from deadpool.proto.grpc_options import CHANNEL_OPTIONS
from deadpool.proto.messages import RankMessage, RankOrder
from deadpool.proto.secret import TOKEN_KEY

log = logging.getLogger(__name__)
_AGENT_DEATH_S = 1.0  # an agent that died has taken this process with it by then


class Link:
    """`on_order` is called on the link's own thread, one order after the other. An agent that dies takes this process with it.

    `on_lost(reason)`: called there too, once, when the line has broken between two live processes; nothing comes any more.
    `threads`: the link's and gRPC's; after `close` they end.
    """

    def __init__(
        self, socket_path: Path, token: str, on_order: Callable[[RankOrder], None], on_lost: Callable[[str], None]
    ) -> None:
        self._outgoing: queue.SimpleQueue[RankMessage | None] = queue.SimpleQueue()
        self._on_order, self._on_lost = on_order, on_lost
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=CHANNEL_OPTIONS)
        stub = rank_pb2_grpc.AgentStub(self._channel)
        before = set(threading.enumerate())
        self._orders = stub.Serve(self._messages(), metadata=[(TOKEN_KEY, token)])
        self._closing = threading.Event()
        threading.Thread(target=self._listen, name="deadpool-link", daemon=True).start()
        self.threads = [thread for thread in threading.enumerate() if thread not in before]

    def send(self, message: RankMessage) -> None:
        self._outgoing.put(message)

    def close(self) -> None:
        self._closing.set()
        self._outgoing.put(None)
        self._channel.close()

    def _messages(self) -> Iterator[rank_pb2.RankMessage]:
        while (message := self._outgoing.get()) is not None:
            yield encode_rank_message(message)

    def _listen(self) -> None:
        reason = "the agent has closed it"
        try:
            for wire in self._orders:
                self._on_order(decode_rank_order(wire))
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except Exception as error:
            log.exception("an order of the agent's cannot be obeyed")
            reason = f"{type(error).__name__}: {error}"
        if not self._closing.wait(_AGENT_DEATH_S):
            self._on_lost(reason)
