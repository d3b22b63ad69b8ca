"""Agents' streams that end: which ends are the loss of the node."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from deadpool.proto.config import JobConfig
from deadpool.proto.messages import Heartbeat, Hello
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import LineFile
from deadpool.supervisor.runtime import Runtime
from deadpool.supervisor.streams import RelayStream, Stream

CONFIG = JobConfig(job_id="j", nnodes=1, nproc_per_node=1, spares=1, command=("s.py",), python="python", log_dir="logs")


def hello(node: int, stream: int, *, moves: bool = False) -> Hello:
    return Hello(node_id=f"node{node}", hint=node, host="h", port=node, pid=9, generation=0, stream=stream, moves=moves)


def run(folder: Path, happens: Callable[[Runtime], Awaitable[None]]) -> list[str]:
    """Returns the names of the events that were noted of a job of one node and a spare, on its way to its first generation."""

    async def job(journal: LineFile, events: LineFile) -> None:
        runtime = Runtime(CONFIG, journal=journal, events=EventLog(events))
        loop = asyncio.create_task(runtime.run())
        await happens(runtime)
        for _ in range(10):  # rounds of the event loop
            await asyncio.sleep(0)
        names.extend(name for name, _ in runtime.events.counts)
        runtime.stop("the test is over", 0)
        for node in range(2):
            runtime.stream_closed(runtime.attend(hello(node, 9)), "its stream was closed")
        await loop

    names: list[str] = []
    with closing(LineFile(folder / "journal")) as journal, closing(LineFile(folder / "events.jsonl")) as events:
        asyncio.run(job(journal, events))
    return names


@pytest.mark.parametrize("said", [False, True], ids=["on its way", "settled"])
def test_an_agent_that_leaves_a_relay_where_nobody_welcomed_it_may_be_on_its_way(tmp_path: Path, said: bool) -> None:
    """The supervisor was away, and finds that the agent went to the relay, left it, and comes by itself once more."""

    async def happens(runtime: Runtime) -> None:
        runtime.attend(hello(0, 1))
        runtime.attend(hello(1, 1))
        relay = RelayStream("node0")
        runtime.relay_opened(relay, "door")
        behind: Stream = runtime.attend(hello(1, 2, moves=True), relay, 1)
        if said:
            runtime.heard(behind, Heartbeat(generation=0))
        runtime.stream_closed(behind, "its stream was closed")
        runtime.attend(hello(1, 3, moves=True))

    assert ("node_lost" in run(tmp_path, happens)) is said
