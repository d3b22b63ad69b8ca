"""Agents' streams: which ends are the loss of the node, and where orders go out."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from deadpool.proto.config import JobConfig
from deadpool.proto.convert import decode_order, order_body
from deadpool.proto.generated import agent_pb2
from deadpool.proto.messages import Heartbeat, Hello, HostTrouble, Inject, OpenStore, Told, Welcome
from deadpool.supervisor.core import Job
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import LineFile
from deadpool.supervisor.journal.replay import ReplayedJob
from deadpool.supervisor.model.commands import Command, Note
from deadpool.supervisor.runtime import Runtime
from deadpool.supervisor.streams import RelayStream, Stream

CONFIG = JobConfig(job_id="j", nnodes=1, nproc_per_node=1, spares=1, command=("s.py",), python="python", log_dir="logs")


def hello(node: int, stream: int, *, moves: bool = False) -> Hello:
    return Hello(node_id=f"node{node}", hint=node, host="h", port=node, pid=9, generation=0, stream=stream, moves=moves)


class Disk(LineFile):
    """A journal's, which may be full."""

    full = False

    def _write(self, data: bytes) -> None:
        if self.full:
            raise OSError("no room")
        super()._write(data)


class Clock:
    now_s = 1.0

    def __call__(self) -> float:
        return self.now_s


def run(
    folder: Path,
    happens: Callable[[Runtime], Awaitable[None]],
    disk: type[LineFile] = LineFile,
    clock: Callable[[], float] = time.monotonic,
    past: ReplayedJob | None = None,
) -> list[str]:
    """Returns the names of the events that were noted of a job of one node and a spare, on its way to its first generation."""

    async def job(journal: LineFile, events: LineFile) -> None:
        runtime = Runtime(CONFIG, journal=journal, events=EventLog(events), clock=clock, past=past)
        loop = asyncio.create_task(runtime.run())
        await happens(runtime)
        await rounds()
        names.extend(name for name, _ in runtime.events.counts)
        runtime.stop("the test is over", 0)
        for node in range(2):
            runtime.attendance.stream_closed(runtime.attendance.attend(hello(node, 9)), "its stream was closed")
        await loop

    names: list[str] = []
    with closing(disk(folder / "journal")) as journal, closing(LineFile(folder / "events.jsonl")) as events:
        asyncio.run(job(journal, events))
    return names


@pytest.mark.parametrize("said", [False, True], ids=["on its way", "settled"])
def test_an_agent_that_leaves_a_relay_where_nobody_welcomed_it_may_be_on_its_way(tmp_path: Path, said: bool) -> None:
    """The supervisor was away, and finds that the agent went to the relay, left it, and comes by itself once more."""

    async def happens(runtime: Runtime) -> None:
        runtime.attendance.attend(hello(0, 1))
        runtime.attendance.attend(hello(1, 1))
        relay = RelayStream("node0")
        runtime.attendance.relay_opened(relay, "door")
        behind: Stream = runtime.attendance.attend(hello(1, 2, moves=True), relay, 1)
        if said:
            runtime.attendance.heard(behind, Heartbeat(generation=0))
        runtime.attendance.stream_closed(behind, "its stream was closed")
        runtime.attendance.attend(hello(1, 3, moves=True))

    assert ("node_lost" in run(tmp_path, happens)) is said


def test_an_order_for_everybody_is_handed_to_a_relay_once(tmp_path: Path) -> None:
    """Those behind it that have not been welcomed on this stream get it after their Welcome, with all that they have missed."""
    told: list[Told] = []

    async def happens(runtime: Runtime) -> None:
        runtime.attendance.attend(hello(0, 1))
        relay = RelayStream("node0")
        runtime.attendance.relay_opened(relay, "door")
        runtime.attendance.attend(hello(1, 1), relay, 1)
        await rounds()
        told.extend(await told_to(relay))
        injecting = asyncio.create_task(runtime.inject("kill-rank", 0, 1000))
        await asyncio.sleep(0)  # it is asked for, and has not been looked at
        runtime.attendance.attend(hello(1, 2), relay, 2)
        await injecting
        told.extend(await told_to(relay))
        await runtime.inject("kill-rank", 0, 1001)
        told.extend(await told_to(relay))

    run(tmp_path, happens)
    orders = [(each.members, type(decode_order(agent_pb2.Order.FromString(each.order)))) for each in told if not each.closed]
    assert orders == [((1,), Welcome), ((2,), Welcome), ((2,), Inject), ((2,), Inject)]
    assert [each.numbers[0] > 0 for each in told if not each.closed] == [False, False, True, True]


def test_a_relay_that_was_given_up_and_still_speaks_is_not_heard(tmp_path: Path) -> None:
    """Its last words may have been on their way: it would be found silent later on, and be nowhere."""

    async def happens(runtime: Runtime) -> None:
        runtime.attendance.attend(hello(0, 1))
        relay, newer = RelayStream("node0"), RelayStream("node0")
        runtime.attendance.relay_opened(relay, "door")
        assert runtime.attendance.relay_lives(relay)
        runtime.attendance.relay_opened(newer, "door")
        assert not runtime.attendance.relay_lives(relay)
        runtime.attendance.relay_closed(newer)
        assert not runtime.attendance.relay_lives(newer)
        clock.now_s += 100.0  # all are silent

    clock = Clock()
    assert "relay_closed" in run(tmp_path, happens, clock=clock)


def test_agents_hear_of_what_is_on_the_disk_alone(tmp_path: Path) -> None:
    heard: list[tuple[int, ...]] = []

    async def happens(runtime: Runtime) -> None:
        async def order(number: int) -> None:
            if number:
                runtime.attendance.heard(behind, HostTrouble(kind="log-disk", text=""), number=number)
            await rounds()
            await runtime.inject("kill-rank", 0, 1000)
            heard.extend(each.heard for each in await told_to(relay) if not each.closed)

        runtime.attendance.attend(hello(0, 1))
        relay = RelayStream("node0")
        runtime.attendance.relay_opened(relay, "door")
        behind: Stream = runtime.attendance.attend(hello(1, 1), relay, 1)
        await rounds()
        await told_to(relay)
        await order(1)
        Disk.full = True
        await order(2)
        Disk.full = False
        await order(0)

    run(tmp_path, happens, Disk)
    assert heard == [(1,), (1,), (2,)]


class DueJob(Job):
    """A job with a deadline that has passed whenever a test says so."""

    due = False

    def next_deadline_s(self) -> float | None:
        return 0.0 if self.due else super().next_deadline_s()

    def tick(self, *, now_s: float) -> list[Command]:
        due, self.due = self.due, False
        return [Note(cause="deadline", event="passed", generation=0, fields={})] if due else super().tick(now_s=now_s)


@pytest.mark.parametrize("full_at", ["message", "deadline"])
@pytest.mark.parametrize("written_at", ["message", "deadline"])
def test_a_journal_that_cannot_be_written_is_noted_and_its_end_is(tmp_path: Path, full_at: str, written_at: str) -> None:
    """Whatever it is that is written when the disk is full, and when there is room again; agents hear of what has waited."""
    job = DueJob(CONFIG)

    async def happens(runtime: Runtime) -> None:
        async def write(at: str, number: int) -> None:
            job.due = at == "deadline"
            if at == "message":
                runtime.attendance.heard(behind, HostTrouble(kind="log-disk", text=""), number=number)
            else:
                runtime.attendance.heard(behind, Heartbeat(generation=0))  # nothing is written for it; the clock is looked at
            await rounds()

        relay = RelayStream("node0")
        runtime.attendance.relay_opened(relay, "door")
        behind: Stream = runtime.attendance.attend(hello(0, 1), relay, 1)
        await rounds()
        Disk.full = True
        await write(full_at, 1)
        runtime.attendance.heard(behind, HostTrouble(kind="log-disk", text=""), number=2)
        await rounds()
        assert relay.heard == {1: 0}
        Disk.full = False
        await write(written_at, 3)
        assert relay.heard == {1: job.state.roster.nodes["node0"].session.heard}

    names = run(tmp_path, happens, Disk, past=ReplayedJob(job=job))
    assert [name for name in names if name.startswith("journal")] == ["journal_unwritable", "journal_written_again"]


async def rounds() -> None:
    for _ in range(10):  # of the event loop
        await asyncio.sleep(0)


async def told_to(relay: RelayStream) -> tuple[Told, ...]:
    batch = await relay.next()
    assert batch is not None
    return batch.told


def test_what_follows_each_other_and_is_the_same_goes_to_a_relay_once() -> None:
    async def sent() -> tuple[Told, ...]:
        relay = RelayStream("node0")
        body = order_body(OpenStore(generation=1))
        relay.send(1, body, 5, 2)
        relay.heard = {1: 2, 2: 0}
        relay.send_to_all(body, 6)
        relay.send(2, None, 0, 0)
        relay.heard = {}
        relay.send_to_all(body, 7)
        return await told_to(relay)

    body = order_body(OpenStore(generation=1))
    same = Told(members=(1, 1, 2), order=body, numbers=(5, 6, 6), heard=(2, 2, 0))
    assert asyncio.run(sent()) == (same, Told(members=(2,), numbers=(0,), heard=(0,), closed=True))
