"""A supervisor and agents behind a relay, on real connections, in a process of its own: relayed.py SCENARIO FOLDER [tls]."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # a supervisor is started beside gRPC's threads

import grpc.aio

from benchmarks.simulated_agents import SharedDiscovery, SimulatedAgent
from deadpool.agent.relay.door import Relay
from deadpool.agent.supervisor_link.stream import SupervisorLink
from deadpool.proto.config import JobConfig, to_json
from deadpool.proto.convert import encode_agent_message
from deadpool.proto.doors import open_aio_channel
from deadpool.proto.generated.agent_pb2_grpc import SupervisorStub
from deadpool.proto.grpc_options import CHANNEL_OPTIONS
from deadpool.proto.secret import TOKEN_KEY, make_token, tls_token, write_private

_TIMEOUT_S = 60.0
_NODES, _SPARES = 5, 2


def link_of(agent: SimulatedAgent) -> SupervisorLink:
    assert isinstance(agent.link, SupervisorLink)
    return agent.link


class RelayedJob:
    """A supervisor process, and agents in this one."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.supervisor = self._supervisor()
        self._token = token
        self.agents: list[SimulatedAgent] = []
        self.relays: list[Relay] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _supervisor(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "deadpool.supervisor.main", "--job-dir", str(self.folder), "--with-parent"]
        return subprocess.Popen(command)

    def restart_supervisor(self) -> None:
        self.supervisor.kill()
        self.supervisor.wait()
        self.supervisor = self._supervisor()

    def start(self) -> None:
        discovery = SharedDiscovery(self.folder)
        for index in range(_NODES + _SPARES):
            relay = Relay(f"node{index}", "127.0.0.1", self._token)
            link = partial(SupervisorLink, discovery, self._token, relay=relay)
            agent = SimulatedAgent(index, range(index, index + 1), _NODES, link)
            relay.beats_s = agent.beat_every_s = 0.3
            relay.silence_s = link_of(agent).patience_s = 30.0  # nobody falls silent here, and a loaded machine is slow
            self.agents.append(agent)
            self.relays.append(relay)
            self._tasks.append(asyncio.create_task(agent.run(0.0)))

    async def lose(self, index: int) -> None:
        """That node's agent is gone, with all its connections."""
        self.agents[index].mute = True
        self._tasks[index].cancel()
        await asyncio.wait([self._tasks[index]])
        await self.relays[index].close(0.0)

    async def end(self) -> None:
        for index in range(len(self.agents)):
            await self.lose(index)

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / "logs" / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def behind(self) -> list[int]:
        """Returns the agents that speak through a relay."""
        return [index for index, agent in enumerate(self.agents) if link_of(agent).door]

    def most_are_behind(self, *, but: str = "") -> bool:
        """Of a relay other than `but`. Who does not come through to one in time speaks for itself, and may be a relay as well."""
        doors = [link_of(self.agents[index]).door for index in self.behind()]
        return but not in doors and len(doors) > len(self.agents) // 2

    def relay_of(self, index: int) -> int:
        return next(at for at, relay in enumerate(self.relays) if relay.door == link_of(self.agents[index]).door)


async def until(true: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        while not true():
            await asyncio.sleep(0.01)
    assert true(), what


async def _trains_behind_a_relay(job: RelayedJob) -> None:
    """The job runs, and agents speak through a relay."""
    job.start()
    await until(lambda: job.events("started"), "the job runs")
    await until(job.most_are_behind, "they speak through a relay")
    await until(lambda: all(agent.plays for agent in job.agents[:_NODES]), "every agent has had its ranks")
    job.agents[0].join()
    await until(lambda: job.events("hooked"), "it has hooks")


async def a_failure_is_recovered_from_through_a_relay(job: RelayedJob) -> None:
    await _trains_behind_a_relay(job)
    failed = next(index for index in job.behind() if index < _NODES)
    job.agents[failed].fail(failed)
    await until(lambda: job.events("recovered"), "it has recovered")
    assert not job.events("node_lost")


async def a_relay_that_is_lost_loses_nobody_else(job: RelayedJob) -> None:
    await _trains_behind_a_relay(job)
    lost = job.relay_of(job.behind()[0])
    door = job.relays[lost].door
    await job.lose(lost)
    await until(lambda: job.events("recovered"), "a spare has taken the relay's place")
    await until(lambda: job.most_are_behind(but=door), "the others speak through another relay")
    failed = next(index for index in job.behind() if index < _NODES)
    job.agents[failed].fail(failed)
    await until(lambda: len(job.events("recovered")) == 2, "and recover from the next failure")
    assert [event["node"] for event in job.events("node_lost")] == [f"node{lost}"]


async def a_supervisor_that_is_lost_is_followed_by_the_next_one(job: RelayedJob) -> None:
    """Where it takes long to start, agents leave their relay, and one of them may be a second one when the first is back."""
    await _trains_behind_a_relay(job)
    job.restart_supervisor()
    await until(lambda: len({event["node"] for event in job.events("agent_back")}) == _NODES + _SPARES, "all have come back")
    await until(job.most_are_behind, "through relays")
    failed = next(index for index in job.behind() if index < _NODES)
    job.agents[failed].fail(failed)
    await until(lambda: job.events("recovered"), "and it goes on")
    assert not job.events("node_lost")


async def nobody_comes_in_without_the_token(job: RelayedJob) -> None:
    await _trains_behind_a_relay(job)
    supervisor = json.loads((job.folder / "endpoint.json").read_text())["endpoint"]
    for door in (supervisor, link_of(job.agents[job.behind()[0]]).door):
        for stranger in (make_token(), tls_token(make_token())):
            async with open_aio_channel(door, stranger, CHANNEL_OPTIONS) as channel:
                call = SupervisorStub(channel).Attend(metadata=((TOKEN_KEY, stranger),), timeout=_TIMEOUT_S)
                try:
                    await call.write(encode_agent_message(job.agents[0].hello()))
                    said = await call.read()
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    said = None
                code = await call.code()
                assert not said, said
                assert code is not grpc.StatusCode.OK  # UNAUTHENTICATED, or how gRPC says that the other end had closed before
    assert not job.events("node_lost")


_ALL = (
    nobody_comes_in_without_the_token,
    a_failure_is_recovered_from_through_a_relay,
    a_relay_that_is_lost_loses_nobody_else,
    a_supervisor_that_is_lost_is_followed_by_the_next_one,
)
SCENARIOS = {each.__name__: each for each in _ALL}


def main() -> None:
    scenario, folder = SCENARIOS[sys.argv[1]], Path(sys.argv[2])
    config = JobConfig(
        job_id="t",
        nnodes=_NODES,
        nproc_per_node=1,
        spares=_SPARES,
        command=("x",),
        python="python",
        log_dir=str(folder / "logs"),
        heartbeat_timeout_s=30.0,
        relay_above=2,
    )
    (folder / "job.json").write_text(to_json(config))
    token = tls_token(make_token()) if sys.argv[3:] == ["tls"] else make_token()
    write_private(folder / "token", token)
    job = RelayedJob(folder, token)
    try:
        asyncio.run(_play(scenario, job))
    finally:
        job.supervisor.kill()
        job.supervisor.wait()


async def _play(scenario: Callable[[RelayedJob], Any], job: RelayedJob) -> None:
    try:
        await scenario(job)
    finally:
        await job.end()


if __name__ == "__main__":
    main()
