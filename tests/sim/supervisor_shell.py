"""The shell around the supervisor's core: the real Job and Silence around a timer and the agents' connections."""

from abc import ABC, abstractmethod

from sim.links import BehindRelay, Link, RelayLink
from sim.node import SimNode
from sim.rank import SimRank
from sim.relay import SimRelay
from sim.suspension import Suspension
from sim.truth import Loop, Truth
from sim.witness import Witness
from sim.world import Pipe, World

from deadpool.proto import convert
from deadpool.proto.config import JobConfig
from deadpool.proto.generated import agent_pb2
from deadpool.proto.messages import (
    NO_STEP,
    AgentMessage,
    FromGroup,
    Heartbeat,
    Hello,
    Route,
    Said,
    Stop,
    Stopped,
)
from deadpool.supervisor.core import Job
from deadpool.supervisor.failures.hang import StepWatch
from deadpool.supervisor.failures.hang_inquiry import stepping_generation
from deadpool.supervisor.failures.heartbeats import HeartbeatMonitor
from deadpool.supervisor.failures.node_claims import Claim, Claims
from deadpool.supervisor.model.commands import Answer, Command, EndJob, Note, Quit, SendOrder
from deadpool.supervisor.model.events import (
    DrainRequested,
    Event,
    FromAgent,
    NodesLost,
    StepsStalled,
    StragglerJudged,
)
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.relays import Relays
from deadpool.supervisor.resumption import REHOME_S

_GROUP = 2  # agents behind one relay


class SupervisorShell(ABC):
    """`past`: everything the core was given, for the replay. How it is lost and comes back: supervisor.py."""

    def __init__(self, world: World, truth: Truth, config: JobConfig, loops: list[Loop]) -> None:
        self.world = world
        self.truth = truth
        truth.nproc_per_node = config.nproc_per_node
        truth.compares = config.verify_every > 0
        self.ahead_s = 0.0  # of this machine's clock: a successor's may have jumped
        self.config = config
        self.loops = loops  # the script's
        self.until = loops[-1].until  # steps of the job
        self.job = Job(config)
        self.nodes: dict[str, SimNode] = {}  # the newest life of each
        self.agents: dict[int, SimNode] = {}  # every life there was, by pid
        self.links: dict[Link, Link] = {}  # an agent's connection: its way up -> its way down
        self.relays: dict[Pipe, RelayLink] = {}  # by their way up
        self.past: list[tuple[Event | None, float]] = []
        self.exit_code: int | None = None
        self.root_cause = ""
        self._suspension = Suspension(world, lambda: self._alarm(self._alarm_s))
        self._silence = HeartbeatMonitor(timeout_s=config.heartbeat_timeout_s, now_s=0.0)
        self._steps = StepWatch(timeout_s=config.hang_timeout_s)
        self._streams: dict[str, Link] = {}
        self._arriving: set[Link] = set()  # as Stream.arriving
        self._claims = Claims()
        self._routes = self._no_relays()
        self._event_id = 0
        self._alarm_s = 0.0
        self._unwritten = 0  # heartbeats at the end of `past` that the journal does not hold
        self._falls_within = False  # the next event is the last one: its orders do not go out, or late
        self.bodies_communicate = False  # the script's ranks do in their loop bodies
        self.leaves_at = NO_STEP  # the step in whose loop body the script leaves the loop
        self.repeatable = False  # the script is a function, which can be called again
        self.intervals: tuple[int, ...] = (1,)  # of states: a fixed one, or what its ranks may wish
        self.rehearsals = 2  # of a process before it goes on from a state that others have stepped to
        self.witness = Witness(world, truth, loops, config.world_size, self.processes)
        self.is_down = False
        self.term = 0
        self._generation = 0  # of the newest whole line

    def _no_relays(self) -> Relays:
        return Relays(above=self.config.relay_above, group=_GROUP)

    @abstractmethod
    def _fall(self, commands: list[Command]) -> None:
        """It is gone; of these commands, which are decided, some may still be done."""

    # ------------------------------------------------------------ relays

    def relay_opened(self, relay: SimRelay, up: Pipe, down: Pipe) -> None:
        if self.is_down:
            self.world.at(0.001, down.close)
            return
        if self._suspension.holds(self.relay_opened, relay, up, down):
            return
        for older in [each for each, link in self.relays.items() if link.relay.node.node_id == relay.node.node_id]:
            self._relay_closed(older, within_s=REHOME_S + self._silence.timeout_s)
        self.relays[up] = RelayLink(relay, down)
        down.send([])
        self._silence.relay_heard(relay.node.node_id, now_s=self.now_s)
        self._route(self._routes.opened(relay.node.node_id, str(relay.node.pid)))

    def group_said(self, up: Pipe, batch: FromGroup) -> None:
        if self._suspension.holds(self.group_said, up, batch):
            return
        link = self.relays.get(up)
        if link is None:
            return
        self._silence.relay_heard(link.relay.node.node_id, now_s=self.now_s)
        link.down.send([])
        for said in batch.said:
            if up in self.relays:
                self._member_said(link, said)
        heard = []
        for member, age_ms in zip(batch.living, batch.ages_ms, strict=True):
            behind = link.members.get(member)
            if behind is not None and self._streams.get(behind.node.node_id) is behind:
                self._arriving.discard(behind)
                heard.append((behind.node.node_id, age_ms / 1e3))
        self._silence.heard_by_relay(heard, now_s=self.now_s)

    def _member_said(self, link: RelayLink, said: Said) -> None:
        behind = link.members.get(said.member)
        if said.closed:
            if behind is not None:
                del link.members[said.member]
                self.closed(behind.node, behind, "its stream was closed")
            return
        wire = agent_pb2.AgentMessage.FromString(said.message)
        message = convert.decode_agent_message(wire)
        if behind is None and isinstance(message, Hello):
            behind = BehindRelay(self.agents[message.pid], link, said.member)
            link.members[said.member] = self.links[behind] = behind
        if behind is not None:
            self.receive(behind.node, behind, wire.number, message)

    def group_gone(self, up: Pipe) -> None:
        if not self._suspension.holds(self.group_gone, up) and up in self.relays:
            self._relay_closed(up)

    def _relay_closed(self, up: Pipe, *, within_s: float = REHOME_S) -> None:
        link = self.relays.pop(up)
        name = link.relay.node.node_id
        self._routes.closed(name)
        self._silence.relay_gone(name)
        members, link.members = list(link.members.values()), {}
        link.down.close()
        for behind in members:
            self.links.pop(behind, None)
            if self._streams.get(behind.node.node_id) is behind:
                del self._streams[behind.node.node_id]
                if self.job.state.phase is Phase.END:
                    self._lost({behind.node.node_id: "its relay has ended"})
                else:
                    self._silence.expect(behind.node.node_id, now_s=self.now_s, within_s=within_s)

    def _route(self, routes: list[tuple[str, Route]]) -> None:
        for node_id, route in routes:
            if node_id in self._streams:
                self.links[self._streams[node_id]].send((0, 0, route))

    # ------------------------------------------------------------ agents

    def receive(self, node: SimNode, up: Link, number: int, message: AgentMessage) -> None:
        if up not in self.links or self._suspension.holds(self.receive, node, up, number, message):
            return
        if isinstance(message, Hello):
            known = self.job.state.roster.nodes.get(node.node_id)
            claim = self._claims.claim(message, known)
            if claim is Claim.REFUSED:
                self._dismiss(up)
                return
            if claim is Claim.LATE:
                self.links.pop(up).close()
                return
            older = self._streams.get(node.node_id)
            self._streams[node.node_id] = up
            if claim is Claim.TAKES_OVER and known is not None and known.live:
                self.truth.lost(node.node_id)
            if older is not None and claim is Claim.TAKES_OVER:
                self._dismiss(older)
            elif older is not None:
                self.links.pop(older).close()
        if self._streams.get(node.node_id) is not up:
            return
        self._arriving.discard(up)
        if isinstance(message, Hello) and message.moves:
            self._arriving.add(up)
        self._silence.heard(node.node_id, now_s=self.now_s)
        if isinstance(message, Hello):
            through = up.relay.relay.node.node_id if isinstance(up, BehindRelay) else ""
            self._silence.speaks_through(node.node_id, through)
        if isinstance(message, Stopped):
            self._silence.forget(node.node_id)
        elif isinstance(message, Heartbeat):
            self._steps.heard(message, now_s=self._silence.attended_s(self.now_s))
        self._handle(FromAgent(event_id=self._next_id(), node_id=node.node_id, message=message, number=number))
        if isinstance(message, Hello) and not self.is_down:
            through = up.relay.relay.node.node_id if isinstance(up, BehindRelay) else ""
            self._route(self._routes.joined(node.node_id, node.index, through=through))

    def _dismiss(self, up: Link) -> None:
        down = self.links.pop(up)
        down.send((0, 0, Stop(reason="another agent, started later, is this node", grace_s=0.0)))
        down.close()

    def closed(self, node: SimNode, up: Link, reason: str) -> None:
        if up not in self.links or self._suspension.holds(self.closed, node, up, reason):
            return
        if self._streams.get(node.node_id) is not up:
            return
        if up in self._arriving and self.job.state.phase is not Phase.END:
            del self._streams[node.node_id], self.links[up]
            self._silence.expect(node.node_id, now_s=self.now_s, within_s=REHOME_S)
        else:
            self._lose(node.node_id, reason)

    def _lose(self, node_id: str, reason: str) -> None:
        self.links.pop(self._streams.pop(node_id)).close()
        self._lost({node_id: reason})

    def _lost(self, lost: dict[str, str]) -> None:
        """By node the reason."""
        for node_id, reason in lost.items():
            self._silence.forget(node_id)
            lives = [node for node in self.agents.values() if node.node_id == node_id]
            if not any(node.disturbed or not node.alive for node in lives) and self.job.state.phase is not Phase.END:
                raise self.truth.fail(f"{node_id} is given up ({reason}), and nothing has befallen it")
            self.truth.lost(node_id)
            self._routes.left(node_id)
            for up in [each for each, link in self.relays.items() if link.relay.node.node_id == node_id]:
                self._relay_closed(up)
        self._handle(NodesLost(event_id=self._next_id(), lost=lost))

    def drain(self, node_id: str, *, undo: bool) -> None:
        if not self.is_down and not self.job.state.ending.over and not self._suspension.holds(self._drain, node_id, undo):
            self._drain(node_id, undo)

    def _drain(self, node_id: str, undo: bool) -> None:
        self._handle(DrainRequested(event_id=self._next_id(), node=node_id, reason="simulated", undo=undo))

    def straggles(self, rank: int) -> None:
        """The rank's own part of a step takes long, as its supervisor has found by the heartbeats."""
        if not self.is_down and not self.job.state.ending.over and not self._suspension.holds(self._straggles, rank):
            self._straggles(rank)

    def _straggles(self, rank: int) -> None:
        state = self.job.state
        node_id = state.roster.ranks[rank].node_id if rank < len(state.roster.ranks) else ""
        if state.phase is Phase.RUN:  # as the runtime asks the watch
            judged = StragglerJudged(
                event_id=self._next_id(), generation=state.generation, rank=rank, node=node_id, own_s=0.3, median_s=0.1
            )
            self._handle(judged)

    @property
    def now_s(self) -> float:
        """The job's clock, as this supervisor sees it."""
        return self.world.now_s + self.ahead_s

    # ------------------------------------------------------------ the core

    def _handle(self, event: Event) -> None:
        now_s = self.now_s
        self.past.append((event, now_s))
        generation, hooked = self.job.state.generation, self.job.state.hooked
        commands = self.job.handle(event, now_s=now_s)
        self.witness.decided(commands, self.job.state)
        is_heartbeat = isinstance(event, FromAgent) and isinstance(event.message, Heartbeat)
        self._unwritten = self._unwritten + 1 if is_heartbeat and not commands else 0
        if self._falls_within and commands:
            if self.world.chance(0.3):  # the line is torn: it was never acted on
                self.past.pop()
                self._fall([])
            else:
                self._decided(generation, hooked)
                self._fall(commands)
            return
        self._decided(generation, hooked)
        self._carry_out(commands)
        if not self.is_down:
            self._set_alarm()

    def _decided(self, generation: int, hooked: bool) -> None:
        """The event is written: what it leads to is decided, whoever carries it out. Before it these were the job's."""
        self._generation = self.job.state.generation
        self.truth.check(self._generation >= generation, "the generation went back")
        if self._generation > generation and not hooked:
            self.truth.committed, self.truth.void_before = 0, self._generation

    def _set_alarm(self) -> None:
        deadline_s = self._silence.next_check_s()
        job_s = self.job.next_deadline_s()
        if job_s is not None:
            deadline_s = min(deadline_s, job_s)
        deadline_s = max(deadline_s, self.now_s)
        if self._alarm_s <= self.now_s or deadline_s < self._alarm_s:
            self._alarm_s = deadline_s
            self.world.at(deadline_s - self.now_s, self._alarm, deadline_s)

    def _alarm(self, at_s: float) -> None:
        if at_s != self._alarm_s or self._suspension.lasts or self.is_down:
            return
        now_s = self.now_s
        if now_s >= self._silence.next_check_s():
            silent = self._silence.silent_relays(now_s=now_s)
            for up in [each for each, link in self.relays.items() if link.relay.node.node_id in silent]:
                self._relay_closed(up)
            lost: dict[str, str] = {}
            for node_id, silent_s in self._silence.check(now_s=now_s):
                if node_id in self._streams:
                    self.links.pop(self._streams.pop(node_id)).close()
                    lost[node_id] = f"silent for {silent_s:.1f} s"
                else:
                    lost[node_id] = "has not come back to this supervisor"
            if lost:
                self._lost(lost)
            if self.is_down:
                return
        state = self.job.state
        generation, left = stepping_generation(state), bool(state.failures.leavers)
        stall = self._steps.check(generation=generation, left=left, now_s=self._silence.attended_s(now_s))
        if stall is not None and not self.is_down:
            stalled = StepsStalled(
                event_id=self._next_id(), generation=state.generation, stalled_s=stall.seconds, sure=stall.sure
            )
            self._handle(stalled)
        while not self.is_down and (commands := self.job.tick(now_s=now_s)):
            self.past.append((None, now_s))
            self._unwritten = 0  # what came before this line is in the journal with it
            self.witness.decided(commands, self.job.state)
            self._generation = self.job.state.generation
            self._carry_out(commands)
        if not self.is_down:
            self._alarm_s = 0.0
            self._set_alarm()

    def _carry_out(self, commands: list[Command]) -> None:
        for command in self.witness.addressed(commands, self.job.state):
            match command:
                case SendOrder(node_id=node_id, order=order):
                    self.witness.ordered(order)
                    up = self._streams.get(node_id)
                    if up is not None:
                        self.links[up].send((command.number, self._heard_of(node_id), order))
                case EndJob(exit_code=exit_code, root_cause=root_cause):
                    self.exit_code, self.root_cause = exit_code, root_cause
                case Quit():
                    self.world.over = True
                case Note():
                    self.witness.noted(command)
                case Answer():
                    pass
                case _:
                    raise AssertionError(command)
        self.witness.placement(self.job.state.roster)

    def _heard_of(self, node_id: str) -> int:
        return self.job.state.roster.nodes[node_id].session.heard

    def _next_id(self) -> int:
        self._event_id += 1
        return self._event_id

    # ------------------------------------------------------------ the neighbourhood

    def processes(self) -> list[SimRank]:
        return [process for node in self.agents.values() if node.alive for process in node.processes.values() if process.alive]

    def peers_notice(self, dead: SimRank) -> None:
        """Some of the ranks that talked to a dead process see their connection break, others just wait."""
        member = dead.member
        if member is None or not dead.communicates:
            return
        for process in self.processes():
            peer = process.member
            if peer is not None and peer.running == member.running and self.world.chance(0.5):
                self.world.at(self.world.between(0.001, 0.2), process.collective_fails, peer.running)
