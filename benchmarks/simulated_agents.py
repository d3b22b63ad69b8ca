"""Many simulated agents in one process, each on a real connection of its own, for benchmarks/supervisor_scale.py.

Each says what an agent with ranks would say: Hello, heartbeats, answers to orders, all of a recovery; nothing is started for it.
Their side of a connection costs as little as can be (bare_streams.py), and what comes is decoded DECODED_AFTER_S later: on real
machines all this is their own processors' work, and here it would be measured in the supervisor's place. With --grpc they have
the real SupervisorLink, as is needed for TLS. With --group N one agent in N + 1 is a relay, with a real connection for its group;
the others of the group are in its process, and reach it without one.
Commands come as JSON lines on stdin, answers go to stdout; clocks are this machine's monotonic one, the same in all processes.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bare_streams import BareStream
from deadpool.agent.gathering import together
from deadpool.agent.relay.door import GroupPlace, Relay
from deadpool.agent.stream_tasks import cancelled
from deadpool.agent.supervisor_link.conversation import Conversation
from deadpool.agent.supervisor_link.discovery import Discovery
from deadpool.agent.supervisor_link.stream import SupervisorLink
from deadpool.host.limits import raise_open_files
from deadpool.proto import convert, messages
from deadpool.proto.config import from_json
from deadpool.proto.convert import decode_order, encode_agent_message
from deadpool.proto.generated import agent_pb2 as pb
from deadpool.proto.messages import NO_STEP, AgentMessage, Order, Slot, SlotKind
from deadpool.proto.secret import read_private
from deadpool.proto.version import own_version

BEAT_S = 1.0
OPENS_PER_S = 2000.0  # of all processes together, at the start
_COMMITTED, _LIVE = 3, 5  # steps: what a recovery finds, whatever was said to be in progress
_TRACE_S = 0.02
_BACKOFF_S = 0.5
DECODED_AFTER_S = 0.3
_ANSWER_S = (0.3, 0.6)  # a rank that leaves its step, or restores, takes that long


class SharedDiscovery(Discovery):
    """Asks the file system once for all agents of the process, and not as often: on real machines each asks its own."""

    poll_s = 0.2

    def __init__(self, job_dir: Path) -> None:
        super().__init__(job_dir, None, None, None)
        self._seen: object = None
        self._seen_s = 0.0

    def trace(self) -> object:
        if time.monotonic() - self._seen_s > _TRACE_S:
            self._seen, self._seen_s = super().trace(), time.monotonic()
        return self._seen


class BareRelay(Relay):
    """A relay on a bare stream. `arrived_s`: when that which it passes on just now was read from its socket."""

    arrived_s = 0.0

    async def start(self) -> None:
        self.door = "nowhere:1"  # its group is in its process

    async def run(self, endpoint: str) -> None:
        stream = BareStream("Relay", self._token, self._heard_of)
        await stream.open(endpoint)
        writer = asyncio.create_task(self._write(stream))
        try:
            await stream.ended
        finally:
            self._end()
            writer.cancel()
            stream.close()

    def _heard_of(self, data: bytes, at_s: float) -> None:
        self._asked_s = None
        self._open.set()
        if data:
            asyncio.get_running_loop().call_later(DECODED_AFTER_S, self._pass_on, data, at_s)

    def _pass_on(self, data: bytes, at_s: float) -> None:
        self.arrived_s = at_s
        self._told(convert.decode(pb.ToGroup.FromString(data)))


class BareLink:
    """An agent's way to the supervisor. What SupervisorLink does, on a bare stream."""

    def __init__(
        self,
        discovery: Discovery,
        token: str,
        relay: BareRelay | None,
        hello: Callable[[], messages.Hello],
        on_order: Callable[[Order, float], None],
    ) -> None:
        self._discovery, self._token, self._hello, self._on_order = discovery, token, hello, on_order
        self._relay = relay
        self._conversation = Conversation()
        self._stream: BareStream | None = None  # once it is welcomed

    def send(self, message: AgentMessage) -> None:
        if isinstance(message, messages.Heartbeat) and self._stream is None:
            return
        self._conversation.say(message)
        self._say()

    def _say(self) -> None:
        while self._stream is not None and (said := self._conversation.next()) is not None:
            number, message = said
            self._stream.send(encode_agent_message(message, number=number).SerializeToString())
            self._conversation.sent()

    async def run(self) -> None:
        while True:
            seen = self._discovery.trace()
            with contextlib.suppress(OSError):
                await self._converse(await self._discovery.find(0))
            self._stream = None
            until_s = time.monotonic() + random.uniform(0, _BACKOFF_S)
            while time.monotonic() < until_s and self._discovery.trace() == seen:
                await asyncio.sleep(self._discovery.poll_s)

    async def _converse(self, endpoint: str) -> None:
        def came(data: bytes, at_s: float) -> None:
            asyncio.get_running_loop().call_later(DECODED_AFTER_S, self._obey, stream, data, at_s)

        stream = BareStream("Attend", self._token, came)
        await stream.open(endpoint)
        stream.send(encode_agent_message(self._conversation.hello(self._hello())).SerializeToString())
        relaying = asyncio.create_task(self._speak_for_others(endpoint)) if self._relay is not None else None
        try:
            await stream.ended
        finally:
            stream.close()
            if relaying is not None:
                await cancelled(relaying)

    async def _speak_for_others(self, endpoint: str) -> None:
        assert self._relay is not None
        await self._relay.start()
        await self._relay.run(endpoint)

    def _obey(self, stream: BareStream, data: bytes, at_s: float) -> None:
        if stream.ended.done():
            return
        wire = pb.Order.FromString(data)
        order = decode_order(wire)
        if isinstance(order, messages.Welcome):
            self._conversation.welcomed(order)
            self._stream = stream
        self._conversation.ordered(wire.number, wire.heard)
        self._on_order(order, at_s)
        self._say()


class LinkInProcess:
    """An agent's way to the relay in its own process. What SupervisorLink does, without a connection."""

    def __init__(self, relay: BareRelay, hello: Callable[[], messages.Hello], on_order: Callable[[Order, float], None]) -> None:
        self._relay, self._hello, self._on_order = relay, hello, on_order
        self._conversation = Conversation()
        self._place: GroupPlace | None = None
        self._welcomed = False
        self._came: deque[tuple[bytes | None, float]] = deque()
        self._arrived = asyncio.Event()

    def put_nowait(self, order: bytes | None, /) -> None:
        """From the relay."""
        self._came.append((order, self._relay.arrived_s))
        self._arrived.set()

    def send(self, message: AgentMessage) -> None:
        if isinstance(message, messages.Heartbeat) and not self._welcomed:
            return
        self._conversation.say(message)
        self._say()

    def _say(self) -> None:
        while self._place is not None and self._welcomed and (said := self._conversation.next()) is not None:
            number, message = said
            self._relay.heard(self._place, message, encode_agent_message(message, number=number).SerializeToString())
            self._conversation.sent()

    async def run(self) -> None:
        while True:
            while not await self._relay.has_supervisor(60.0):
                pass
            self._came.clear()
            self._place = self._relay.enter(
                encode_agent_message(self._conversation.hello(self._hello())).SerializeToString(), self
            )
            while await self._follow():
                pass
            self._welcomed = False
            await asyncio.sleep(random.uniform(0, 0.1))

    async def _follow(self) -> bool:
        """Obeys what has come. Returns whether there is a supervisor still."""
        await self._arrived.wait()
        self._arrived.clear()
        while self._came:
            data, at_s = self._came.popleft()
            if data is None:
                return False
            wire = pb.Order.FromString(data)
            order = decode_order(wire)
            if isinstance(order, messages.Welcome):
                self._conversation.welcomed(order)
                self._welcomed = True
            self._conversation.ordered(wire.number, wire.heard)
            self._on_order(order, at_s)
            self._say()
        return True


class SimulatedAgent:
    """`link(hello, on_order)`: its way to the supervisor.

    `moments`: of what happened last, by kind of order, in monotonic seconds. `mute`: its heartbeats stop, its stream stays.
    """

    def __init__(
        self,
        index: int,
        ranks: range,
        members: int,
        link: Callable[[Callable[[], messages.Hello], Callable[..., None]], SupervisorLink | BareLink | LinkInProcess],
    ) -> None:
        self.index, self.node_id = index, f"node{index}"
        self.mute, self.beat_every_s = False, BEAT_S
        self.moments: dict[str, float] = {}
        self.heartbeats, self.beat_s = 0, 0.0
        self._ranks = ranks if index < members else range(0)
        self._pids: dict[int, int] = {}
        self._generation = 0
        self._failed: set[int] = set()  # ranks without a state of their own in memory
        self._incarnation = time.time_ns()
        self.link = link(self.hello, self.ordered)

    @property
    def plays(self) -> bool:
        """Returns whether it has been ordered to start ranks."""
        return bool(self._pids)

    async def run(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        link = asyncio.create_task(self.link.run())
        asyncio.get_running_loop().call_later(random.uniform(0, self.beat_every_s), self._beat)
        await link

    def fail(self, rank: int) -> float:
        """Reports that the rank's process was killed. Returns when."""
        at_s = time.monotonic()
        self._failed.add(rank)
        exited = messages.RankExited(
            generation=self._generation, rank=rank, pid=self._pids.pop(rank), exit_code=137, signal=9, commit_step=_COMMITTED
        )
        self.link.send(exited)
        return at_s

    def join(self) -> None:
        """The first rank has called deadpool.join(): the job has hooks."""
        rank = self._ranks[0]
        self.link.send(messages.RankJoined(generation=self._generation, rank=rank, pid=self._pids[rank]))

    def hello(self) -> messages.Hello:
        return messages.Hello(
            node_id=self.node_id,
            hint=self.index,
            host="127.0.0.1",
            port=1 + self.index,
            pid=1000 + self.index,
            generation=self._generation,
            incarnation=self._incarnation,
            version=own_version(),
        )

    def _beat(self) -> None:
        asyncio.get_running_loop().call_later(self.beat_every_s, self._beat)
        if self.mute:
            return
        self.heartbeats, self.beat_s = self.heartbeats + 1, time.monotonic()
        progress = tuple(
            messages.RankProgress(
                rank=rank,
                pid=pid,
                step=_LIVE + self.heartbeats,
                commit_step=_COMMITTED,
                steps_done=self.heartbeats,
                exposed_stall_s=0.25,
            )
            for rank, pid in self._pids.items()
        )
        self.link.send(
            messages.Heartbeat(
                generation=self._generation,
                ranks=progress,
                cpu_share=0.5,
                memory_share=0.25,
                shm_free_bytes=1 << 35,
                standins_ready=1,
                wall_s=time.time(),
            )
        )

    def ordered(self, order: Order, at_s: float | None = None) -> None:
        """`at_s`: when it came, if not now."""
        kind = type(order).__name__
        self.moments[kind] = at_s or time.monotonic()
        took_s = random.uniform(*_ANSWER_S) if isinstance(order, messages.Quiesce | messages.Reform) else 0.0
        asyncio.get_running_loop().call_later(took_s, self._answer, order)

    def _answer(self, order: Order) -> None:
        for message in self._answers(order):
            self.link.send(message)

    def _answers(self, order: Order) -> list[AgentMessage]:
        match order:
            case messages.OpenStore(generation=generation):
                return [messages.StoreOpened(generation=generation, host="127.0.0.1", port=9)]
            case messages.StartRanks(generation=generation):
                self._generation = generation
                self._pids = {rank: 100_000 + rank for rank in self._ranks}
            case messages.Assign(generation=generation, placements=placements):
                given = [placement.rank for placement in placements]
                self._pids |= {rank: 100_000 * generation + rank for rank in given}
                return [together([self._prepared(rank) for rank in given]), self._report(generation)]
            case messages.Quiesce(generation=generation):
                self._generation = generation
                prepared = [together([self._prepared(rank) for rank in self._pids])] if self._pids else []
                return [*prepared, self._report(generation)]
            case messages.Reform(generation=generation, resume_step=step):
                self._failed.clear()
                at_ns, ranks = time.monotonic_ns(), list(self._pids)
                return [
                    together([messages.RankReformed(generation=generation, rank=rank) for rank in ranks]),
                    together(
                        [messages.RankRestored(generation=generation, rank=rank, step=step, bytes_restored=0) for rank in ranks]
                    ),
                    together(
                        [messages.RankResumed(generation=generation, rank=rank, step=step + 1, at_ns=at_ns) for rank in ranks]
                    ),
                ]
            case messages.Stop():
                return [messages.Stopped()]
            case _:
                pass
        return []

    def _report(self, generation: int) -> messages.VaultReport:
        held = [(rank, step) for rank in self._ranks for step in (_COMMITTED, _LIVE)]
        slots = tuple(Slot(kind=SlotKind.SNAPSHOT, rank=rank, generation=1, step=step) for rank, step in held)
        return messages.VaultReport(generation=generation, slots=slots)

    def _prepared(self, rank: int) -> messages.RankPrepared:
        live = rank not in self._failed
        return messages.RankPrepared(
            generation=self._generation,
            rank=rank,
            live_generation=1 if live else 0,
            live_step=_LIVE if live else NO_STEP,
            commit_step=_COMMITTED,
        )


def _command(agents: dict[int, SimulatedAgent], line: dict[str, Any]) -> dict[str, Any]:
    """Carries out one command. Returns the answer."""
    match line["do"]:
        case "fail":
            return {"at_s": agents[line["node"]].fail(line["rank"])}
        case "join":
            agents[line["node"]].join()
        case "mute":
            agents[line["node"]].mute = True
            return {"last_beat_s": agents[line["node"]].beat_s}
        case "last":  # when each agent has had its newest order of that kind, of those that have had one since
            moments = [agent.moments.get(line["kind"], 0.0) for agent in agents.values()]
            since = [at_s for at_s in moments if at_s >= line["since_s"]]
            return {"had": len(since), "last_s": max(since, default=0.0)}
        case "beats":
            return {"beats": sum(agent.heartbeats for agent in agents.values()), "cpu_s": time.process_time()}
        case other:
            raise AssertionError(other)
    return {}


async def _run(arguments: argparse.Namespace) -> None:
    token = read_private(arguments.job_dir / "token")
    config = from_json((arguments.job_dir / "job.json").read_text())
    discovery = SharedDiscovery(arguments.job_dir)
    nproc, last = arguments.ranks, arguments.agents
    agents: dict[int, SimulatedAgent] = {}
    relay: BareRelay | None = None
    for at, index in enumerate(range(arguments.first, last, arguments.every)):
        ranks = range(index * nproc, (index + 1) * nproc)
        relays = arguments.group > 0 and at % (arguments.group + 1) == 0
        if relays:
            relay = BareRelay(f"node{index}", "127.0.0.1", token)
            relay.configure(config)
        if relay is not None and not relays:
            link: Any = partial(LinkInProcess, relay)
        elif arguments.grpc:
            link = partial(SupervisorLink, discovery, token)
        else:
            link = partial(BareLink, discovery, token, relay)
        agents[index] = SimulatedAgent(index, ranks, arguments.members, link)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    spread_s = last / OPENS_PER_S
    tasks = [asyncio.create_task(agent.run(random.uniform(0, spread_s))) for agent in agents.values()]
    while line := await reader.readline():
        print(json.dumps(_command(agents, json.loads(line))), flush=True)
    for task in tasks:
        task.cancel()


def main(act: Callable[[argparse.Namespace], Any] = _run) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--agents", type=int, required=True, help="of all processes")
    parser.add_argument("--members", type=int, required=True, help="of these, the others are spares")
    parser.add_argument("--first", type=int, required=True, help="this process plays that agent, and each so many further")
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True, help="of each node")
    parser.add_argument("--group", type=int, default=0, help="agents behind one relay (default: none relays)")
    parser.add_argument("--grpc", action="store_true", help="real links, of gRPC")
    raise_open_files()
    gc.set_threshold(50_000, 20, 100)
    logging.disable(logging.WARNING)  # every agent says that its supervisor is gone
    asyncio.run(act(parser.parse_args()))
    os._exit(0)  # thousands of channels need not be closed one by one


if __name__ == "__main__":
    main()
