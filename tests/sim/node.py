"""A simulated node: the real NodeCore, around it processes, a vault and a connection in virtual time."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

from sim.rank import SimRank
from sim.relay import SimRelay
from sim.suspension import Suspension
from sim.vault import SimVault
from sim.world import Pipe, World

from deadpool.agent import events
from deadpool.agent.core import NodeCore
from deadpool.agent.supervisor_link.conversation import Conversation
from deadpool.agent.supervisor_link.homing import Homing
from deadpool.proto import messages
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import Endpoint, RankMessage, Reading

if TYPE_CHECKING:
    from sim.supervisor import SimSupervisor

_pids = itertools.count(1000)
_BEAT_S = 1.0
_PATIENCE_S = 1.25  # with a relay that does not answer
_AGAIN = 0.03  # of what ranks are told, and say: it comes once more, late


class SimNode:
    """One life of a node: killed, it comes back as a new object with the same name and an empty vault.

    `pid` is also where its vault and its stores are reached: no two lives have the same.
    """

    def __init__(self, supervisor: "SimSupervisor", index: int) -> None:
        self.supervisor = supervisor
        self.world: World = supervisor.world
        self.truth = supervisor.truth
        self.node_id = f"node{index}"
        self.index = index
        self.alive = True
        self.core = NodeCore(node_id=self.node_id, hint=index, host="here")
        self.processes: dict[int, SimRank] = {}
        self.vault = SimVault(self.truth)
        self.pid = next(_pids)
        self.incarnation = int(self.world.now_s * 1e9)
        self.config: JobConfig = supervisor.config
        self.readings: tuple[Reading, ...] = ()
        supervisor.agents[self.pid] = self
        self.conversation = Conversation()
        self.up: Pipe | None = None  # to the supervisor
        self.down: Pipe | None = None
        self.disturbed = False  # something has befallen this node itself, not only those it speaks to
        self.suspension = Suspension(self.world, lambda: None)  # of its agent: its ranks live, its vault is not served
        self.full = False  # its vault has no room for more replicas
        self.cut_until_s = 0.0
        self._heartbeating = False
        self.welcomed = False  # on the present connection
        self.homing = Homing()
        self.relay: SimRelay | None = None  # what it is for others
        self._older: tuple[Pipe, Pipe] | None = None  # the connection that it leaves once it is welcomed on the present one
        self._older_door = ""
        self._kept: list[tuple[int, int, messages.Order]] = []  # what came on that meanwhile
        self._asked_s: float | None = None  # since when its relay owes an answer

    # ------------------------------------------------------------ connection

    def connect(self) -> None:
        if self.suspension.holds(self.connect):
            return
        if not self.alive or self.supervisor.job.state.ending.over:
            return
        if self.homing.door:
            relay = self._relay_at(self.homing.door)
            if relay is None or not relay.open:
                self.homing.ended(relay_lives=relay is not None, now_s=self.world.now_s)
                self.world.at(self.world.between(0.05, 0.5), self.connect)
                return
            self.up, self.down = relay.enter(self)
        elif self.supervisor.is_down:
            self.world.at(self.world.between(0.05, 0.5), self.connect)
            return
        else:
            self._open_direct()
        self._greet()

    def _relay_at(self, door: str) -> SimRelay | None:
        node = self.supervisor.agents.get(int(door))
        return node.relay if node is not None and node.alive else None

    def _open_direct(self) -> None:
        self.down = down = Pipe(self.world, lambda order: self.receive(down, order), lambda: self.disconnected(down))
        self.up = up = Pipe(self.world, lambda said: self.supervisor.receive(self, up, *said), lambda: self._gone(up))
        held_until_s = max(self.cut_until_s, self.relay.cut_until_s if self.relay is not None else 0.0)
        up.held_until_s = down.held_until_s = held_until_s
        self.supervisor.links[up] = down

    def _greet(self) -> None:
        assert self.up is not None
        self.welcomed, self._asked_s = False, None
        generation = self.core.generation
        hello = messages.Hello(
            node_id=self.node_id,
            hint=self.index,
            host="here",
            port=self.pid,
            pid=self.pid,
            generation=generation,
            incarnation=self.incarnation,
            readings=self.readings,
        )
        self.up.send((0, self.conversation.hello(hello, moves=self._older is not None)))
        if not self._heartbeating:
            self._heartbeating = True
            self.world.at(self.world.between(0, _BEAT_S), self._heartbeat)

    def _gone(self, up: Pipe) -> None:
        self.supervisor.closed(self, up, "its stream was closed")

    def disconnected(self, down: object, *, relay_lives: bool = False) -> None:
        """The other side of the stream ended: try again soon."""
        if self.suspension.holds(lambda: self.disconnected(down, relay_lives=relay_lives)):
            return
        if self._older is not None and self._older[1] is down:
            self._older = None
        if not self.alive or self.down is not down:
            return
        if self._older is not None and not self.welcomed:
            self._missed()
            return
        relayed = bool(self.homing.door)
        self.homing.ended(relay_lives=relay_lives, now_s=self.world.now_s)
        self.up = self.down = self._older = None
        if self.relay is not None:
            self.relay.drop()
        self.world.at(self.world.between(0.05, 0.2 if relayed and not relay_lives else 1.0), self.connect)

    def _move(self, through: str) -> None:
        """Greets at another place; the present connection is kept until it is welcomed there."""
        door = self.homing.door
        if self.relay is not None or not self.homing.routed(through) or self.up is None or self.down is None:
            return
        relay = self._relay_at(through) if through else None
        if through and (relay is None or not relay.open):
            self.homing.routed(door)
            return
        self._older, self._older_door, self._kept = (self.up, self.down), door, []
        if relay is not None:
            self.up, self.down = relay.enter(self)
            self.world.at(_PATIENCE_S, self._not_welcomed, self.down)
        else:
            self._open_direct()
        self._greet()

    def _not_welcomed(self, down: Pipe) -> None:
        if self.suspension.holds(self._not_welcomed, down):
            return
        if self.alive and self.down is down and not self.welcomed and self._older is not None:
            self._missed()

    def _missed(self) -> None:
        """It was not welcomed there. What it said to a relay may still arrive; so it says Hello once more, directly."""
        if self.up is not None:
            self.up.close()
        if self.homing.door and not self.supervisor.is_down:
            self.homing.routed("")
            self._open_direct()
            self._greet()
        else:
            self._stay()

    def _stay(self) -> None:
        """The older connection goes on, with what has come on it."""
        assert self._older is not None
        (self.up, self.down), self._older, self.welcomed, self._asked_s = self._older, None, True, None
        self.homing.routed(self._older_door)
        kept, self._kept = self._kept, []
        for order in kept:
            self.receive(self.down, order)
        self._say_what_waits()

    def cut(self, seconds: float) -> None:
        """Nothing gets through for a while; the connection survives, as TCP does."""
        self.disturbed = True
        self.cut_until_s = self.world.now_s + seconds
        for pipe in (self.up, self.down, *(self._older or ())):
            if pipe is not None:
                pipe.held_until_s = self.cut_until_s
        if self.relay is not None:
            self.relay.hold(self.cut_until_s)

    def cut_from_supervisor(self, seconds: float) -> None:
        """A relay: its group still reaches it."""
        assert self.relay is not None
        self.disturbed = True
        for pipe in (self.up, self.down):
            if pipe is not None:
                pipe.held_until_s = self.world.now_s + seconds
        self.relay.cut(self.world.now_s + seconds)

    def suspend(self, seconds: float) -> None:
        """Its agent gets no time; its ranks do."""
        self.disturbed = True
        self.suspension.begin(seconds)

    def drop_connection(self) -> None:
        self.disturbed = True
        if self.up is not None and self.down is not None:
            self.up.close()
            self.down.close()

    def _send(self, message: messages.AgentMessage) -> None:
        if self.alive and (self.welcomed or not isinstance(message, messages.Heartbeat)):
            self.conversation.say(message)
            self._say_what_waits()

    def _say_what_waits(self) -> None:
        while self.up is not None and self.welcomed and (said := self.conversation.next()) is not None:
            self.up.send(said, twice=self.world.chance(0.02))
            self.conversation.sent()

    def receive(self, down: Pipe, said: tuple[int, int, messages.Order] | None) -> None:
        """`said`: None from a relay, which lives."""
        if self.suspension.holds(self.receive, down, said):
            return
        if self._older is not None and self._older[1] is down and said is not None:
            self._kept.append(said)
        if not self.alive or self.down is not down:
            return
        self._asked_s = None
        if said is None:
            return
        number, heard, order = said
        if isinstance(order, messages.Welcome):
            self.truth.check(self.conversation.welcomed(order), f"{self.node_id} was welcomed by a term that is over")
            self.welcomed = True
            self.homing.welcomed()
            if self._older is not None:
                self._older[0].close()
                self._older = None
            if self.relay is not None:
                self.relay.connect()
        if isinstance(order, messages.Route):
            if order.relays and self.relay is None:
                self.relay = SimRelay(self)
                self.relay.connect()
            elif order.through:
                self._move(order.through)
            return
        talk = self.conversation
        is_next = number == 0 or self.supervisor.witness.is_next(
            number, pid=self.pid, conversation=talk.number, obeyed=talk.obeyed
        )
        self.truth.check(is_next, f"{self.node_id}: order {number} is not the next")
        talk.ordered(number, heard)
        self._handle(events.OrderReceived(order=order))
        self._say_what_waits()

    def listens_to(self, down: object) -> bool:
        return self.down is down or (self._older is not None and self._older[1] is down)

    def leave(self, down: object) -> None:
        """The agent gives up a silent connection."""
        self.disconnected(down)

    def _heartbeat(self) -> None:
        if self.suspension.holds(self._heartbeat) or not self.alive:
            return
        progress = [
            messages.RankProgress(
                rank=rank,
                pid=process.pid,
                step=self.processes[process.number].step,
                commit_step=self.processes[process.number].known_commit,
                steps_done=self.processes[process.number].steps_done,
                exposed_stall_s=0.0,
                stopped=self.processes[process.number].frozen,
            )
            for rank, process in self.core.playing().items()
            if process.number in self.processes
        ]
        self._send(messages.Heartbeat(generation=self.core.generation, ranks=tuple(progress), readings=self.readings))
        self.world.at(_BEAT_S, self._heartbeat)
        if self.homing.door and self.down is not None and self._older is None and self._asked_s is None:
            self._asked_s = self.world.now_s
            self.world.at(_PATIENCE_S, self._leave_relay, self.down, self._asked_s)

    def _leave_relay(self, down: Pipe, asked_s: float) -> None:
        """It has not answered: this one speaks for itself. Its connection there is kept until it is welcomed."""
        if self.suspension.holds(self._leave_relay, down, asked_s):
            return
        if self.down is not down or self._asked_s != asked_s or self._older is not None or not self.alive:
            return
        if self.supervisor.is_down or self.supervisor.job.state.ending.over:
            self._asked_s = None
            return
        self._move("")

    # ------------------------------------------------------------ the core and its commands

    def _handle(self, event: events.Event) -> None:
        if not self.suspension.holds(self._handle, event) and self.alive:
            self._carry_out(self.core.handle(event, now_s=self.world.now_s))

    def _carry_out(self, commands: list[events.Command]) -> None:
        world = self.world
        for command in commands:
            match command:
                case events.StartProcess(process=number, rank=rank, generation=generation):
                    self.processes[number] = SimRank(self, number, next(_pids))
                    self._named(number, rank, generation)
                    world.at(world.between(0.005, 0.05), self._forked, number)
                case events.KillProcess(process=number):
                    self.process_dies(number)
                case events.Tell(process=number, order=order):
                    if number in self.processes:
                        world.at(0.001, self.processes[number].receive, order)
                        if not isinstance(order, messages.Role) and world.chance(_AGAIN):
                            world.at(world.between(0.01, 1.5), self.processes[number].receive, order)
                case events.Report(message=message):
                    self._send(message)
                case events.ReportVault(generation=generation):
                    self._send(messages.VaultReport(generation=generation, slots=tuple(self.vault.report())))
                case events.CollectCalls(generation=generation):
                    self._send(messages.CallReport(generation=generation, ranks=tuple(self._calls())))
                case events.ServeStore(generation=generation):
                    self.truth.groups(generation).store_at = self.pid
                    opened = events.StoreServed(generation=generation, port=generation, error="")
                    world.at(world.between(0.005, 0.05), self._handle, opened)
                case events.DropSnapshots():
                    self.vault.drop_snapshots()
                case events.EndNode():
                    self._stop()
                case events.NameProcess(process=number, rank=rank, generation=generation):
                    self._named(number, rank, generation)
                case events.Configure() | events.PrepareStore() | events.UseEdges() | events.DropUnusedSlots():
                    pass
                case events.KillNode():
                    self.die()
                case events.InjectHere():
                    pass
                case _:
                    assert_never(command)
        deadline_s = self.core.next_deadline_s()
        if deadline_s is not None:
            world.at(max(0.0, deadline_s - world.now_s), self._tick)

    def _named(self, number: int, rank: int | None, generation: int) -> None:
        if rank is not None:
            self.truth.roles[self.processes[number].pid] = (self.node_id, rank, generation)

    def _calls(self) -> Iterator[messages.RankCalls]:
        """Each step is one collective; a frozen rank has not entered it."""
        for rank, process in self.core.ranks().items():
            played = self.processes.get(process.number)
            if played is not None and played.member is not None and played.alive:
                step = max(0, played.step)
                entered = step if played.frozen or step >= played.until else step + 1
                call = messages.GroupCall(group="0", operation="allreduce", entered=entered, completed=step)
                yield messages.RankCalls(rank=rank, pid=played.pid, step=played.step, groups=(call,))

    def _tick(self) -> None:
        if self.suspension.holds(self._tick):
            return
        deadline_s = self.core.next_deadline_s()
        if self.alive and deadline_s is not None and deadline_s <= self.world.now_s:
            self._carry_out(self.core.tick(now_s=self.world.now_s))

    def _forked(self, number: int) -> None:
        if self.suspension.holds(self._forked, number):
            return
        process = self.processes.get(number)
        if process is not None and process.alive:
            self._handle(events.ProcessForked(process=number, pid=process.pid))
            self.world.at(self.world.between(0.05, 0.5), self._registered, number)

    def _registered(self, number: int) -> None:
        if self.suspension.holds(self._registered, number):
            return
        process = self.processes.get(number)
        if process is not None and process.alive:
            self._handle(events.ProcessRegistered(process=number, pid=process.pid))

    def speak(self, process: SimRank, message: RankMessage) -> None:
        self.world.at(0.001, self._spoken, process, message)
        if self.world.chance(_AGAIN):
            self.world.at(self.world.between(0.01, 1.5), self._spoken, process, message)

    def _spoken(self, process: SimRank, message: RankMessage) -> None:
        if not self.suspension.holds(self._spoken, process, message) and process.number in self.processes:
            self._handle(events.RankSpoke(process=process.number, message=message))

    # ------------------------------------------------------------ ends

    def process_dies(self, number: int) -> None:
        """SIGKILL."""
        process = self.processes.get(number)
        if process is not None and process.alive:
            self.process_ends(process, exit_code=137, signal=9)
            self.supervisor.peers_notice(process)

    def process_ends(
        self, process: SimRank, *, exit_code: int, signal: int = 0, error: str = "", script_ended: bool = False
    ) -> None:
        process.alive = False
        self.truth.ended_in_body[process.pid] = self.node_id, process.rank, process.in_body
        if self.supervisor.has_given_up(self, process):  # it went on without knowing, and cannot tell
            self.truth.body_lost(process.rank, process.in_body)
        self.world.at(self.world.between(0.001, 0.02), self._exited, process, exit_code, signal, error, script_ended)

    def _exited(self, process: SimRank, exit_code: int, signal: int, error: str, script_ended: bool) -> None:
        if self.suspension.holds(self._exited, process, exit_code, signal, error, script_ended) or not self.alive:
            return
        step, commit_step = process.step, process.known_commit
        yielded = process.member.yielded if process.member is not None else messages.NO_STEP
        del self.processes[process.number]
        exited = events.ProcessExited(
            process=process.number,
            exit_code=exit_code,
            signal=signal,
            error=error,
            log_tail="",
            step=step,
            commit_step=commit_step,
            yielded=yielded,
            script_ended=script_ended,
        )
        self._handle(exited)

    def die(self) -> None:
        """The node is gone: its processes, its vault, its connection."""
        self.alive = False
        self.suspension.end()
        self.vault.lose()
        self.truth.lost(self.node_id)
        for process in self.processes.values():
            if process.alive:
                process.alive = False
                self.truth.body_lost(process.rank, process.in_body)
                self.supervisor.peers_notice(process)
        if self.up is not None:
            self.up.close()
        if self.relay is not None:
            self.relay.die()

    def _stop(self) -> None:
        for process in self.processes.values():
            process.alive = False
        self._send(messages.Stopped())
        self.alive = False
        self.vault.lose()
        if self.up is not None:
            self.up.close()
        if self.relay is not None:
            self.relay.die()

    # ------------------------------------------------------------ its neighbours and what it writes

    def other(self, endpoint: Endpoint) -> "SimNode | None":
        return self.at(endpoint.port)

    def at(self, port: int) -> "SimNode | None":
        return self.supervisor.agents.get(port)

    def write_checkpoint(self, generation: int, content: int) -> None:
        """S_k is committed: each node's writer begins to write its part. Parts that contradict each other make no whole."""
        every, step = self.config.checkpoint_every, self.truth.steps[content]
        if self.truth.excluded.get(generation):
            return  # parts are missing
        if every and step % every == 0 and len(set(self.truth.groups(generation).announced[step].values())) == 1:
            playing = set(self.truth.groups(generation).playing.values())
            nodes = [
                agent for agent in self.supervisor.agents.values() if any(p.pid in playing for p in agent.processes.values())
            ]
            self.world.at(self.world.between(0.05, 0.5), self._checkpoint_written, nodes, content)

    def _checkpoint_written(self, nodes: list["SimNode"], content: int) -> None:
        step, newest = self.truth.steps[content], self.truth.steps.get(self.truth.checkpoint, -1)
        if all(node.alive for node in nodes) and step > newest:
            self.truth.checkpoint = content
            self._send(messages.CheckpointWritten(step=step, path=f"step-{step}", seconds=0.1))

    def everyone(self) -> list[SimRank]:
        return self.supervisor.processes()
