"""How the simulated supervisor is lost, and comes back: suspended, killed, started again from its journal."""

from sim.links import BehindRelay, Link
from sim.node import SimNode
from sim.rank import SimRank
from sim.supervisor_shell import SupervisorShell
from sim.truth import Loop, Truth
from sim.world import World

from deadpool.proto.config import JobConfig
from deadpool.supervisor.core import Job
from deadpool.supervisor.failures.hang import StepWatch
from deadpool.supervisor.failures.heartbeats import HeartbeatMonitor
from deadpool.supervisor.failures.node_claims import Claims
from deadpool.supervisor.model.commands import Command, Note, SendOrder
from deadpool.supervisor.model.events import SupervisorStarted
from deadpool.supervisor.resumption import return_s


class SimSupervisor(SupervisorShell):
    def __init__(self, world: World, truth: Truth, config: JobConfig, loops: list[Loop]) -> None:
        super().__init__(world, truth, config, loops)
        self._start_term()

    def suspend(self, seconds: float) -> None:
        """The supervisor's process gets no time for a while."""
        self._suspension.begin(seconds)

    def kill(self) -> None:
        """Its process, or its machine: immediately, or between the journal's line and the orders."""
        if self.is_down or self.job.state.ending.over:
            return
        if self.world.chance(0.5):
            self._falls_within = True
        else:
            self._fall([])

    def has_given_up(self, node: SimNode, process: SimRank) -> bool:
        """Returns whether this process' node was lost, and it goes on, a while, in a job that does not count on it."""
        roster = self.job.state.roster
        generation = process.member.generation if process.member is not None else 0
        given_up = node.node_id in self.witness.given_up
        return given_up and not roster.plays(node.node_id, process.rank, generation, process.pid)

    def _fall(self, commands: list[Command]) -> None:
        world = self.world
        self.truth.log.append(f"{world.now_s:9.3f} ---- the supervisor of term {self.term} is gone, {len(commands)} not done")
        self.is_down, self._falls_within = True, False
        self._suspension.end()
        silent = world.chance(0.3)  # a machine that is gone, or frozen, closes no connection
        late_s = (
            world.between(0, 3.0) if silent else 0.0
        )  # frozen in the middle of sending, it goes on with that when it wakes up
        for command in self.witness.addressed(commands, self.job.state):  # some of the orders may get out, in order
            if isinstance(command, Note):
                self.witness.noted(command)  # it is decided, whether or not anybody reads of it
            if isinstance(command, SendOrder):
                self.witness.ordered(command.order)
            if isinstance(command, SendOrder) and command.node_id in self._streams and world.chance(0.5):
                said = command.number, self._heard_of(command.node_id), command.order
                world.at(late_s, self.links[self._streams[command.node_id]].send, said)
            elif isinstance(command, SendOrder):
                self._streams.pop(command.node_id, None)
        for down in self.links.values():
            if isinstance(down, BehindRelay):  # its relay hears of it
                continue
            if silent:
                world.at(world.between(0.5, 3.0), self._silently_gone, down)
            else:
                down.close()
        for link in self.relays.values():
            if silent:
                world.at(world.between(0.5, 3.0), link.relay.lost, link.down)
            else:
                link.down.close()
        self.links, self._streams, self.relays = {}, {}, {}
        if self._unwritten:
            del self.past[-self._unwritten :]
        world.at(world.between(0.1, 4.0), self._rise)

    def _silently_gone(self, down: Link) -> None:
        for node in self.nodes.values():
            if node.listens_to(down):
                node.leave(down)

    def _rise(self) -> None:
        """The next term: from the journal alone."""
        generation, self.is_down, self._unwritten = self._generation, False, 0
        self.job = Job(self.config)
        self.ahead_s += self.world.random.choice([0.0, 0.0, 1.0, 100.0])
        for event, now_s in self.past:
            if event is None:
                self.job.tick(now_s=now_s)
            else:
                self.job.handle(event, now_s=now_s)
        state, now_s = self.job.state, self.now_s
        self.truth.check(state.generation == generation, f"generation {generation} is {state.generation} after a replay")
        self.exit_code, self.root_cause, self.world.over = state.ending.exit_code, state.ending.root_cause, state.ending.over
        self._silence = HeartbeatMonitor(timeout_s=self.config.heartbeat_timeout_s, now_s=now_s)
        self._steps = StepWatch(timeout_s=self.config.hang_timeout_s)
        within_s = return_s(state.roster.live_count, relay_above=self.config.relay_above)
        for node in state.roster.live():
            if not node.stopped:
                self._silence.expect(node.node_id, now_s=now_s, within_s=within_s)
        self._alarm_s = 0.0
        self._claims = Claims()
        self._routes = self._no_relays()
        self._start_term()

    def _start_term(self) -> None:
        last_s = self.past[-1][1] if self.past else self.now_s
        self.term += 1
        self._handle(SupervisorStarted(event_id=self._next_id(), term=self.term, away_s=self.now_s - last_s))
        self.truth.check(self.job.state.term == self.term, "the term is not known")
