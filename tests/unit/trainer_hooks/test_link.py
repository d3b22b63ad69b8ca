"""The rank's line to its agent: orders come, and the end of a line between two live processes is noticed."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from deadpool.proto.convert import decode_rank_message, encode_rank_order
from deadpool.proto.generated import rank_pb2
from deadpool.proto.generated.rank_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from deadpool.proto.messages import RankOrder, Register, Release
from deadpool.trainer_hooks.link import Link

TIMEOUT_S = 60.0
Serving = Callable[[Iterator[rank_pb2.RankMessage], Any], Iterator[rank_pb2.RankOrder]]


class Agent(AgentServicer):
    def __init__(self, serve: Serving) -> None:
        self._serve = serve

    def Serve(self, requests: Iterator[rank_pb2.RankMessage], context: Any) -> Iterator[rank_pb2.RankOrder]:
        return self._serve(requests, context)


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Callable[[Serving], tuple[Link, "queue.Queue[RankOrder | str]"]]]:
    """Starts an agent that serves so; gives the link to it, and what the link has said: orders, or why it was lost."""
    pool, links = ThreadPoolExecutor(2), list[Link]()
    server = grpc.server(pool)

    def start(serve: Serving) -> tuple[Link, "queue.Queue[RankOrder | str]"]:
        add_AgentServicer_to_server(Agent(serve), server)
        server.add_insecure_port(f"unix:{tmp_path}/agent.sock")
        server.start()
        said: queue.Queue[RankOrder | str] = queue.Queue()
        links.append(Link(tmp_path / "agent.sock", "token", said.put, said.put))
        return links[0], said

    yield start
    for link in links:
        link.close()
    server.stop(0).wait()
    pool.shutdown()  # its threads may count as the link's: they began in the same moment
    for thread in (thread for link in links for thread in link.threads):
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


RELEASE = encode_rank_order(Release(generation=1, step=9))


def test_the_agents_reason_for_a_refusal_is_passed_on(linked: Any) -> None:
    _, said = linked(lambda _, context: context.abort(grpc.StatusCode.NOT_FOUND, "process 7 is no rank of this node"))
    assert said.get(timeout=TIMEOUT_S) == "NOT_FOUND: process 7 is no rank of this node"


def test_an_end_that_this_side_did_not_ask_for_is_a_loss(linked: Any) -> None:
    _, said = linked(lambda _, __: iter([RELEASE]))
    assert said.get(timeout=TIMEOUT_S) == Release(generation=1, step=9)
    assert said.get(timeout=TIMEOUT_S) == "the agent has closed it"


def test_an_order_that_cannot_be_obeyed_is_a_loss(linked: Any) -> None:
    _, said = linked(lambda _, __: iter([rank_pb2.RankOrder()]))
    assert "without a body" in said.get(timeout=TIMEOUT_S)


def test_a_link_that_is_closed_says_nothing(linked: Any) -> None:
    heard: queue.Queue[object] = queue.Queue()

    def serve(requests: Iterator[rank_pb2.RankMessage], _: Any) -> Iterator[rank_pb2.RankOrder]:
        for wire in requests:
            heard.put(decode_rank_message(wire))
            yield RELEASE

    link, said = linked(serve)
    link.send(Register(pid=7))
    assert heard.get(timeout=TIMEOUT_S) == Register(pid=7)
    assert said.get(timeout=TIMEOUT_S) == Release(generation=1, step=9)
    link.close()
    for thread in link.threads:
        if thread.name == "deadpool-link":
            thread.join(TIMEOUT_S)
    assert said.empty()
