"""The shell around the supervisor's core: the real Job and Silence around a timer and the agents' connections."""

import itertools
from abc import ABC, abstractmethod
from typing import Any

from addressed import addressed
from sim.links import BehindRelay, Link, RelayLink
from sim.node import SimNode
from sim.rank import SimRank
from sim.relay import SimRelay
from sim.suspension import Suspension
from sim.truth import Loop, Truth
from sim.world import Pipe, World

from deadpool.proto import convert
from deadpool.proto.config import JobConfig
from deadpool.proto.generated import agent_pb2
from deadpool.proto.messages import (
    NO_STEP,
    AgentMessage,
    Assign,
    FromGroup,
    Heartbeat,
    Hello,
    Order,
    Reform,
    Route,
    Said,
    StartRanks,
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
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.validate import validate
from deadpool.supervisor.relays import Relays
from deadpool.supervisor.report.events import misfit
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
        self._orders: dict[tuple[int, int], dict[int, Order]] = {}  # by agent and conversation, by their numbers
        self._raised: set[int] = set()  # ranks of this generation that have reported an error
        self._given_up: dict[str, int] = {}  # how often a node was lost: its agent's numbers begin anew
        self.bodies_communicate = False  # the script's ranks do in their loop bodies
        self.leaves_at = NO_STEP  # the step in whose loop body the script leaves the loop
        self.repeatable = False  # the script is a function, which can be called again
        self.intervals: tuple[int, ...] = (1,)  # of states: a fixed one, or what its ranks may wish
        self.rehearsals = 2  # of a process before it goes on from a state that others have stepped to
        self.is_down = False
        self.term = 0
        self._generation = 0  # of the newest whole line
        self._planned = 0  # the newest generation whose plan was looked at

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
        self._validate(commands)
        for command in commands:
            if isinstance(command, Note) and command.event == "node_lost":
                lost = str(command.fields["node"])
                self._given_up[lost] = self._given_up.get(lost, 0) + 1
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

    def _validate(self, commands: list[Command]) -> None:
        try:
            validate(self.job.state)
        except AssertionError as broken:
            raise self.truth.fail(str(broken)) from broken
        plans = [each.order for each in commands if isinstance(each, SendOrder) and isinstance(each.order, Reform)]
        for plan in (each for each in plans if each.generation > self._planned):
            self._check_plan(plan)
        self._planned = max([self._planned, *(each.generation for each in plans)])

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
            self._validate(commands)
            self._generation = self.job.state.generation
            self._carry_out(commands)
        if not self.is_down:
            self._alarm_s = 0.0
            self._set_alarm()

    def _carry_out(self, commands: list[Command]) -> None:
        for command in self._addressed(commands):
            match command:
                case SendOrder(node_id=node_id, order=order):
                    self._ordered(order)
                    up = self._streams.get(node_id)
                    if up is not None:
                        self.links[up].send((command.number, self._heard_of(node_id), order))
                case EndJob(exit_code=exit_code, root_cause=root_cause):
                    self.exit_code, self.root_cause = exit_code, root_cause
                case Quit():
                    self.world.over = True
                case Note():
                    self._noted(command)
                case Answer():
                    pass
                case _:
                    raise AssertionError(command)
        self._check_placement()

    def _ordered(self, order: Order) -> None:
        if isinstance(order, Reform):
            self.truth.goes_on_without(order.generation, order.excluded, order.resume_step)
        if isinstance(order, StartRanks):
            self.truth.resized(order.generation, order.world_size)
        if isinstance(order, StartRanks | Reform):
            copies = self.truth.groups(order.generation).copies
            copies.update((each.node_id, len(each.holders)) for each in order.placements)
        if isinstance(order, StartRanks) or (isinstance(order, Assign) and not order.hot):
            for placement in order.placements:
                self.truth.orders(placement.rank, order.generation)

    def _noted(self, note: Note) -> None:
        fields: dict[str, Any] = dict(note.fields)
        assert not misfit(note.event, fields), misfit(note.event, fields)
        self.truth.log.append(f"{self.world.now_s:9.3f} {note.cause}: g{note.generation} {note.event} {fields}")
        match note.event:
            case "recovered":
                self.truth.recovered(note.generation, {loop.until for loop in self.loops})
            case "restarted":
                self.truth.restarted(note.generation)
            case "rank_raised":
                self._raised.add(fields["rank"])
            case "generation":
                self._raised.clear()
            case "loop_body_lost":
                for rank in range(self.config.world_size):
                    self.truth.body_lost(rank, fields["step"])
            case "back_to_checkpoint":
                for rank, step in itertools.product(range(self.config.world_size), range(fields["step"])):
                    self.truth.body_lost(rank, step)
            case "vault_reports_missing" | "node_lost":  # who is stopped, or out of reach, cannot say how far it was
                node_id = fields.get("node")
                for process in self.processes():
                    if process.frozen or process.node.node_id == node_id:
                        self.truth.body_lost(process.rank, process.in_body)
                for home, rank, step in self.truth.ended_in_body.values():
                    if home == node_id:
                        self.truth.body_lost(rank, step)
            case "failure" if "SIGABRT" in fields["cause"]:
                raise self.truth.fail(f"its script had ended, and it is repeated: {fields}")
            case "failure" if "nobody died" in fields["cause"]:
                raised = [each for each in self.processes() if each.raised and each.speaks_for(note.generation)]
                told = [each.pid for each in raised if each.member is not None and each.member.rank in self._raised]
                self.truth.check(not told, f"a broken_collective is acted on, although pid {told} have reported errors")
            case "rank_exited":
                self.truth.exited(fields["rank"], fields["node"], fields["pid"])
            case _:
                pass

    def _addressed(self, commands: list[Command]) -> list[Command]:
        """Returns one for each agent. Whichever supervisor sends it, an order of the same number to an agent is the same."""
        found = addressed(commands, self.job.state)
        for command in found:
            if isinstance(command, SendOrder) and command.number:
                session = self.job.state.roster.nodes[command.node_id].session
                orders = self._orders.setdefault((session.life[2], session.conversation), {})
                order = orders.setdefault(command.number, command.order)
                if order != command.order:
                    raise self.truth.fail(f"two orders {command.number} for {command.node_id}: {order}, {command.order}")
        return found

    def is_next(self, number: int, *, pid: int, conversation: int, obeyed: int) -> bool:
        """Returns whether no order for the agent is left out between the one that it has obeyed and this one."""
        return number == min(each for each in self._orders[pid, conversation] if each > obeyed)

    def _heard_of(self, node_id: str) -> int:
        return self.job.state.roster.nodes[node_id].session.heard

    def _check_plan(self, order: Reform) -> None:
        """As it is made: sent once more, to an agent that has come back, it may name a node that was lost meanwhile."""
        live = {node.node_id for node in self.job.state.roster.live()}
        for source in order.sources:
            nodes = {peer.endpoint.node_id for peer in source.peers} | ({source.endpoint.node_id} if source.endpoint else set())
            if not nodes <= live:
                raise self.truth.fail(f"{source} names a node that is not live")
        self.truth.check(order.generation == self.job.state.generation, "a plan of an old generation was sent")

    def _check_placement(self) -> None:
        """Seats are held by one live node each, ranks by the node of their seat."""
        roster = self.job.state.roster
        seated = [seat for seat in roster.seats if seat is not None]
        self.truth.check(len(seated) == len(set(seated)), f"a node has two seats: {roster.seats}")
        wrong = [seat for seat in seated if roster.nodes[seat].role is not NodeRole.MEMBER]
        if wrong:
            raise self.truth.fail(f"{wrong} have seats, and are no members: {roster.nodes}")
        for rank in roster.ranks:
            if rank.pid:
                self.truth.plays(rank.rank, rank.node_id, rank.pid)

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
