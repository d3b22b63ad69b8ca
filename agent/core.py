"""The agent's decisions, pure: events in, commands out. No I/O, clock, thread; times are monotonic seconds, passed in.

The fence: an order of an older generation than the newest one obeyed changes nothing. What the caller owes: commands are carried
out in order, and every started process is reported exactly once as exited, whatever happens to it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from signal import SIGKILL, SIGTERM
from typing import assert_never

from deadpool.agent.events import (
    CollectCalls,
    Command,
    Configure,
    DropSnapshots,
    DropUnusedSlots,
    EndNode,
    Event,
    HeadsRead,
    KillProcess,
    LaunchRefused,
    NameProcess,
    OrderReceived,
    PrepareStore,
    ProcessExited,
    ProcessForked,
    ProcessRegistered,
    RankSpoke,
    Report,
    ReportVault,
    ServeStore,
    ShutdownRequested,
    StartProcess,
    StoreServed,
    Tell,
    UseEdges,
)
from deadpool.agent.gathering import Gathering, together
from deadpool.agent.injections import Injections, command_for, concerns
from deadpool.agent.processes.environment import STANDIN
from deadpool.agent.rank_process import Process
from deadpool.agent.roles import joining_role, starting_role
from deadpool.agent.standins import Standins
from deadpool.proto import messages
from deadpool.proto.config import JobConfig, Transport, from_json
from deadpool.proto.faults import FAULTS, Target
from deadpool.proto.messages import (
    Assign,
    InjectionDue,
    LaunchFailed,
    Placement,
    Quiesce,
    RankExited,
    RankPrepared,
    RankReformed,
    RankRestored,
    RankResumed,
    Role,
    StartRanks,
)


class NodeCore:
    """One node's part of a job. `hint`: the node's index at launch, -1 when unknown. `host`: where its stores listen."""

    def __init__(self, *, node_id: str, hint: int, host: str, visible_devices: str = "") -> None:
        self.node_id = node_id
        self.hint = hint
        self.host = host
        self._visible_devices = visible_devices
        self.generation = 0
        self.config: JobConfig | None = None
        self.processes: dict[int, Process] = {}
        self.injections = Injections()
        self._next_number = 0
        self._standins = Standins()
        self._gathering = Gathering()
        self._starting: StartRanks | None = None  # waits for the old processes' end
        self._quiesce: Quiesce | None = None
        self._last_exits: dict[int, RankExited] = {}
        self._problem = ""
        self._ending = False

    # ------------------------------------------------------------ what the caller may ask

    def ranks(self) -> dict[int, Process]:
        """Returns the process of each rank that has a live one here."""
        return {each.rank: each for each in self._with_role() if each.rank is not None and not each.hot}

    def hot_standins(self) -> dict[int, Process]:
        """Returns the hot stand-in of each rank that has one here; its process may be here as well."""
        return {each.rank: each for each in self._with_role() if each.rank is not None and each.hot}

    def _with_role(self) -> list[Process]:
        return [each for each in self.processes.values() if each.rank is not None and not each.killed]

    def playing(self) -> dict[int, Process]:
        """Returns those of the present generation; others are about to be replaced, and a heartbeat must not speak of them."""
        return {rank: each for rank, each in self.ranks().items() if each.generation == self.generation}

    def standins_ready(self) -> int:
        return sum(each.waits and each.registered for each in self.processes.values())

    def next_deadline_s(self) -> float | None:
        standins_s = None if self._ending or self._problem else self._standins.next_deadline_s(self._waiting(), self.ranks())
        return min((at_s for at_s in (standins_s, self._gathering.deadline_s) if at_s is not None), default=None)

    # ------------------------------------------------------------ events

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        return list(self._gathered(self._handle(event, now_s), now_s))

    def tick(self, *, now_s: float) -> list[Command]:
        """A deadline has come."""
        if self._gathering.deadline_s is not None and self._gathering.deadline_s <= now_s:
            return [*self._say_gathered(), *self._ticked(now_s)]
        return list(self._ticked(now_s))

    def _ticked(self, now_s: float) -> Iterator[Command]:
        self._standins.tick(self.ranks(), now_s=now_s)
        yield from self._refill()

    def _gathered(self, commands: Iterable[Command], now_s: float) -> Iterator[Command]:
        """Holds back what ranks say of a recovery until all here have said it; before anything else is said it goes on."""
        for command in commands:
            match command:
                case Report(message=RankPrepared(hot=False) | RankReformed() | RankRestored() | RankResumed() as word) if (
                    self._gathering.is_current(word)
                ):
                    if self._gathering.begins(word):
                        yield from self._say_gathered()
                    if self._gathering.add(word, self.ranks(), now_s=now_s):
                        yield from self._say_gathered()
                    continue
                case Report() | ReportVault() | EndNode():
                    yield from self._say_gathered()
                case _:
                    pass
            yield command

    def _say_gathered(self) -> Iterator[Command]:
        words = self._gathering.take()
        if words:
            yield Report(message=together(words))
        if any(isinstance(word, RankPrepared) for word in words):
            yield ReportVault(generation=self.generation)

    def _handle(self, event: Event, now_s: float) -> Iterator[Command]:
        match event:
            case OrderReceived(order=order):
                yield from self._obey(order, now_s)
            case ProcessForked(process=number, pid=pid):
                self.processes[number].pid = pid
            case ProcessRegistered(process=number, pid=pid):
                yield from self._registered(self.processes[number], pid)
            case RankSpoke(process=number, message=message):
                yield from self._spoke(self.processes[number], message)
            case ProcessExited():
                yield from self._exited(event)
            case StoreServed(generation=generation, port=port, error=error):
                opened = messages.StoreOpened(generation=generation, host=self.host, port=port)
                yield Report(message=LaunchFailed(generation=generation, reason=error) if error else opened)
            case LaunchRefused(reason=reason):
                self._problem = reason
                yield self._refusal()
            case HeadsRead(heads=heads, now_ns=now_ns):
                for injection_id in self.injections.take_due(heads, now_ns):
                    yield Report(message=InjectionDue(injection_id=injection_id, at_ns=now_ns))
            case ShutdownRequested(grace_s=grace_s):
                for process in self.processes.values():  # it is the node that leaves, as the end of its stream says
                    process.superseded = True
                yield from self._end(grace_s, SIGTERM)
            case _:
                assert_never(event)

    def _obey(self, order: messages.Order, now_s: float) -> Iterator[Command]:
        if self._ending or (
            not isinstance(order, messages.Welcome) and getattr(order, "generation", self.generation) < self.generation
        ):
            return
        match order:
            case messages.Welcome():
                yield from self._welcomed(order)
            case messages.OpenStore(generation=generation):
                self.generation = generation
                yield self._refusal() if self._problem else ServeStore(generation=generation)
            case StartRanks(generation=generation):
                self.generation = generation
                yield from self._start_ranks(order)
            case messages.WarmUp(standins=standins):
                self._standins.wanted = standins
                if standins and not self._problem:
                    yield PrepareStore()
                yield from self._refill()
            case Quiesce():
                yield from self._quiesced(order, now_s)
            case Assign(generation=generation):
                self.generation = generation
                yield from self._assign(order, now_s)
            case messages.KillRanks(generation=generation, ranks=ranks):
                self.generation = generation
                yield from self._kill_ranks(ranks)
            case messages.ReportCalls(generation=generation):
                self.generation = generation
                yield CollectCalls(generation=generation)
            case messages.Reform(generation=generation):
                self.generation = generation
                yield from self._reform(order)
            case messages.Release() | messages.BeginLoop() | messages.DrillOver():
                self.generation = order.generation
                yield from (Tell(process=each.number, order=order) for each in self.ranks().values() if each.registered)
            case messages.WriteCheckpoint():
                first = self.ranks().get(0)
                if first is not None and first.registered:
                    yield Tell(process=first.number, order=order)
            case messages.Inject():
                self._note_injection(order)
            case messages.InjectionAck(injection_id=injection_id):
                yield from self._carry_out_injection(self.injections.acknowledged(injection_id))
            case messages.Stop(grace_s=grace_s, signal_number=signal_number):
                yield from self._end(grace_s, signal_number)
            case messages.Route():
                pass  # the link has followed it
            case _:
                assert_never(order)

    def _welcomed(self, order: messages.Welcome) -> Iterator[Command]:
        if self.config is None:
            self.config = from_json(order.config_json)
            yield Configure(config=self.config)
        unknown = not order.resumed and bool(self._with_role())  # a drained node's may be of this generation
        if order.generation > self.generation or unknown:  # the job went on without this node: it counts on no process here
            yield from self._supersede()
            self._starting = None
            self.generation = order.generation
            yield from self._use_edges(order.generation, ())

    # ------------------------------------------------------------ ranks

    def _start_ranks(self, order: StartRanks) -> Iterator[Command]:
        if self._problem:
            yield self._refusal()
            return
        self._starting = order
        self._last_exits.clear()
        self._standins.started(order.generation)
        yield from self._supersede()
        yield from self._start_when_clear()

    def _supersede(self) -> Iterator[Command]:
        for process in self.processes.values():
            if process.rank is not None:
                process.superseded = True
                if not process.killed:
                    process.killed = True
                    yield KillProcess(process=process.number)

    def _start_when_clear(self) -> Iterator[Command]:
        """Starts the ranks once no process of an earlier life is left (their ports and devices are free then)."""
        order = self._starting
        if order is None or any(process.rank is not None for process in self.processes.values()):
            return
        self._starting = None
        yield DropSnapshots()
        yield from self._use_edges(order.generation, order.placements)
        for placement in order.placements:
            role = starting_role(self._job(), order, placement, self._visible_devices)
            yield self._start(placement.rank, role, role.environment)

    def _assign(self, order: Assign, now_s: float) -> Iterator[Command]:
        if self._problem:
            yield self._refusal()
            return
        if not order.hot:
            self._starting = None
            self._standins.recovers(order.generation, now_s=now_s)
        live, hot, unwanted = self.ranks(), self.hot_standins(), self._unwanted(order)
        leave = bool(unwanted)
        for placement in order.placements:
            if placement.rank in hot:
                yield from self._is_hot(hot[placement.rank]) if order.hot else self._goes_live(hot[placement.rank], order)
            elif order.hot or placement.rank not in live:  # else it is a joiner of an earlier attempt
                yield from self._give_role(order, placement, unwanted)
        yield from self._end_hot(unwanted)
        if leave:
            yield DropUnusedSlots()

    def _give_role(self, order: Assign, placement: messages.Placement, unwanted: list[Process]) -> Iterator[Command]:
        """A stand-in becomes this rank's process, or gets hot for it: one that is hot for nothing any more, or that waits."""
        role = joining_role(self._job(), order, placement, self._visible_devices)
        again = [each for each in unwanted if each.prepared is not None and each.prepared.repeatable]
        waiting = [each for each in self.processes.values() if each.waits]
        process = max(again or waiting, key=lambda each: each.registered, default=None)
        if process is not None and again:
            unwanted.remove(process)
            process.prepared = None
        if process is None:
            start = self._start(None, None, {STANDIN: "1"})
            yield start
            process = self.processes[start.process]
        process.rank, process.role, process.generation = placement.rank, role, order.generation
        process.hot = order.generation if order.hot else 0
        if not order.hot:
            yield NameProcess(process=process.number, rank=placement.rank, generation=order.generation)
        if process.registered:
            yield Tell(process=process.number, order=role)

    def _is_hot(self, process: Process) -> Iterator[Command]:
        """It is ordered once more: whoever orders it counts from the beginning."""
        if process.prepared is not None:
            yield Report(message=replace(process.prepared, hot=True))

    def _goes_live(self, process: Process, order: Assign) -> Iterator[Command]:
        """A hot stand-in is the rank's process from now on. What it has said so far was not about that."""
        assert process.rank is not None
        assert process.role is not None
        process.hot, process.role = 0, replace(process.role, hot=False)
        process.generation = max(process.generation, order.generation)  # also where it has yet to register, and knows of none
        yield NameProcess(process=process.number, rank=process.rank, generation=order.generation)
        if process.registered:
            yield Report(message=messages.RankJoined(generation=order.generation, rank=process.rank, pid=process.pid))
        if process.prepared is not None and process.prepared.generation == order.generation:  # it was quicker
            yield from self._spoke(process, process.prepared)

    def _unwanted(self, order: Assign) -> list[Process]:
        """Returns the hot stand-ins that are not ordered any more: on a node that takes a seat, those for other seats."""
        ranks = {placement.rank for placement in order.placements}
        seats = set() if order.hot else {placement.node_rank for placement in order.placements}
        return [
            process
            for rank, process in self.hot_standins().items()
            if rank not in ranks and not (process.role is not None and process.role.placement.node_rank in seats)
        ]

    def _end_hot(self, unwanted: Iterable[Process]) -> Iterator[Command]:
        for process in unwanted:
            process.killed = process.superseded = True
            yield KillProcess(process=process.number)

    def _job(self) -> JobConfig:
        assert self.config is not None, "no order comes before Welcome"
        return self.config

    def _start(self, rank: int | None, role: Role | None, environment: dict[str, str]) -> StartProcess:
        number = self._next_number
        self._next_number += 1
        self.processes[number] = Process(number=number, rank=rank, generation=self.generation, role=role)
        return StartProcess(process=number, rank=rank, generation=self.generation, environment=environment)

    def _registered(self, process: Process, pid: int) -> Iterator[Command]:
        process.registered, process.pid = True, pid
        if process.rank is None:
            self._standins.reached_join()
        if process.role is None or process.killed:
            return
        if process.role.muted:  # a joiner starts in the newest recovery, however long it took to get here; a start ends it
            process.generation = max(self._quiesce.generation if self._quiesce is not None else 0, process.generation)
            yield Tell(process=process.number, order=replace(process.role, generation=process.generation))
            return
        yield Tell(process=process.number, order=process.role)
        if self._quiesce is not None and self._quiesce.generation > process.generation:
            process.generation = self._quiesce.generation
            yield Tell(process=process.number, order=self._quiesce)

    def _spoke(self, process: Process, message: messages.RankMessage) -> Iterator[Command]:
        if process.killed or getattr(message, "rank", process.rank) != process.rank:  # or said as another rank, before
            return
        match message:
            case messages.Register() | messages.Reserve():
                raise AssertionError(f"{message} is answered before it comes here")
            case RankPrepared() if process.hot:
                process.prepared = message
                yield Report(message=replace(message, hot=True))
            case messages.RankJoined() if process.hot:
                yield Report(message=replace(message, hot=True))
            case _ if process.hot:
                pass  # the rank's process is another one; what ends this one is said with its end
            case RankResumed(generation=generation, rank=rank):
                yield Report(message=message)
                self._standins.resumed(generation, rank)
                yield from self._refill()
            case _:
                yield Report(message=message)

    def _exited(self, event: ProcessExited) -> Iterator[Command]:
        process = self.processes.pop(event.process)
        if process.rank is None:
            self._standins.ended(killed=process.killed)
        elif not process.superseded:
            exited = RankExited(
                generation=process.hot or process.generation,
                rank=process.rank,
                pid=process.pid,
                exit_code=event.exit_code,
                signal=event.signal,
                error=event.error,
                log_tail=event.log_tail,
                step=event.step,
                commit_step=event.commit_step,
                yielded=event.yielded,
                script_ended=event.script_ended,
                hot=process.hot > 0,
            )
            if not process.hot:
                self._last_exits[process.rank] = exited
            yield Report(message=exited)
        if process.hot:
            yield DropUnusedSlots()
        if process.rank is None or process.hot:
            yield from self._refill()
        yield from self._start_when_clear()

    def _kill_ranks(self, ranks: tuple[int, ...]) -> Iterator[Command]:
        live = self.ranks()
        self._do_not_start(ranks)
        for rank in ranks:
            if rank in live:
                live[rank].killed = True
                live[rank].generation = self.generation  # of this order: the exit is its answer
                yield KillProcess(process=live[rank].number)
            elif rank in self._last_exits:  # it was quicker: say so in the generation that asks
                yield Report(message=replace(self._last_exits[rank], generation=self.generation))

    def _do_not_start(self, ranks: tuple[int, ...]) -> None:
        """Of these ranks' processes, those that wait for an earlier life's end are not started: that is the end of each."""
        if self._starting is None:
            return
        for placement in self._starting.placements:
            if placement.rank in ranks:
                self._last_exits[placement.rank] = RankExited(
                    generation=self.generation, rank=placement.rank, pid=0, exit_code=128 + SIGKILL, signal=SIGKILL
                )
        left = tuple(placement for placement in self._starting.placements if placement.rank not in ranks)
        self._starting = replace(self._starting, placements=left) if left else None

    # ------------------------------------------------------------ a recovery

    def _quiesced(self, order: Quiesce, now_s: float) -> Iterator[Command]:
        self.generation = order.generation
        self._quiesce = order
        self._standins.recovers(order.generation, now_s=now_s)
        for process in self._with_role():
            if process.registered:
                process.generation = order.generation
                yield Tell(process=process.number, order=order)
        yield ReportVault(generation=order.generation)

    def _reform(self, order: messages.Reform) -> Iterator[Command]:
        yield from self._use_edges(order.generation, order.placements)
        live = self.ranks()
        for placement in order.placements:
            process = live.get(placement.rank)
            if process is not None and process.registered:
                sources = tuple(source for source in order.sources if source.rank == placement.rank)
                yield Tell(process=process.number, order=replace(order, placements=(placement,), sources=sources))

    def _use_edges(self, generation: int, placements: tuple[Placement, ...]) -> Iterator[Command]:
        if self._job().h2h is Transport.MPI:
            holders = {holder.node_id: holder for placement in placements for holder in placement.holders}
            yield UseEdges(generation=generation, holders=tuple(holders.values()))

    def _waiting(self) -> int:
        return sum(process.waits or (process.hot > 0 and not process.killed) for process in self.processes.values())

    def _refill(self) -> Iterator[Command]:
        if self._ending or self._problem:
            return
        for _ in range(self._standins.to_start(self._waiting(), self.ranks())):
            yield self._start(None, None, {STANDIN: "1"})

    # ------------------------------------------------------------ injections and the end

    def _note_injection(self, order: messages.Inject) -> None:
        if concerns(order, index=self.hint, ranks=self.ranks()):
            self.injections.add(order)

    def _carry_out_injection(self, injection: messages.Inject | None) -> Iterator[Command]:
        if injection is None:
            return
        process = self.ranks().get(injection.target) if FAULTS[injection.kind].target is Target.RANK else None
        command = command_for(injection, process.number if process is not None else None)
        if command is not None:
            yield command

    def _end(self, grace_s: float, signal_number: int) -> Iterator[Command]:
        if not self._ending:
            self._ending = True
            for process in self.processes.values():
                process.killed |= process.rank is None
            yield EndNode(grace_s=grace_s, signal_number=signal_number)

    def _refusal(self) -> Report:
        return Report(message=LaunchFailed(generation=self.generation, reason=self._problem))
