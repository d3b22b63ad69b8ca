"""The one loop: events in, the core asked, the journal written, the commands carried out, one timer set anew.

gRPC handlers (service.py) only convert, enqueue and answer; attendance.py knows who is connected; nothing but this loop touches
the core. What has come meanwhile is handled together: a storm of agents waits for the disk once and not thousands of times.
"""

import asyncio
import itertools
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from deadpool.host.console import tell
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import (
    CallReport,
    Heartbeat,
    Hello,
    ReportCalls,
    Stopped,
)
from deadpool.proto.messages.status import Diagnosis, JobStatus
from deadpool.proto.terms import SUPERSEDED
from deadpool.supervisor.attendance import Attendance
from deadpool.supervisor.core import Job
from deadpool.supervisor.failures.hang import StepWatch
from deadpool.supervisor.failures.hang_inquiry import stepping_generation
from deadpool.supervisor.failures.heartbeats import HeartbeatMonitor
from deadpool.supervisor.failures.stragglers import StragglerWatch
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import BATCH_MAX, Journal, LineFile, SupersededError
from deadpool.supervisor.journal.replay import ReplayedJob
from deadpool.supervisor.model.commands import Answer, Command, EndJob, KillSelf, Note, Quit, SendOrder, SendToAll, Value
from deadpool.supervisor.model.events import (
    CheckpointRequested,
    DrainRequested,
    Event,
    FromAgent,
    InjectRequested,
    NodesLost,
    StepsStalled,
    StopRequested,
    StragglerJudged,
    SupervisorStarted,
    lost_together,
)
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.questions import CallsQuestion
from deadpool.supervisor.report.measures import JobMeasures
from deadpool.supervisor.report.status import job_status
from deadpool.supervisor.resumption import return_s

_RECOVERED = ("recovered", "restarted")


class Runtime:
    """`run()` once, in the event loop that also serves gRPC; it returns the job's exit code. `clock`: monotonic seconds."""

    def __init__(
        self,
        config: JobConfig,
        *,
        journal: LineFile,
        events: EventLog,
        past: ReplayedJob | None = None,
        clock: Callable[[], float] = time.monotonic,
        term: int = 1,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.term = term
        self._past = past or ReplayedJob(job=Job(config))
        self.job = self._past.job
        self.pulse = self._past.pulse
        self.events = events
        self._clock = clock
        self._journal = Journal(self.job, journal, is_over=is_over)
        self.silence = HeartbeatMonitor(timeout_s=config.heartbeat_timeout_s, now_s=clock())
        self._steps = StepWatch(timeout_s=config.hang_timeout_s)  # in attended time
        self._stragglers = StragglerWatch()
        self._events: deque[Event] = deque()
        self._alarm = asyncio.Event()  # something has come, or a deadline
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # what it is set to, by the job's clock
        self._ids = itertools.count(self._past.last_event_id + 1)
        self.attendance = Attendance(self, relay_above=config.relay_above)
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._asked: list[CallsQuestion] = []
        self._exit_code: int | None = None

    async def run(self) -> int:
        try:
            self._begin_term()
            await self._loop()
        except SupersededError:
            self._exit_code = SUPERSEDED
        assert self._exit_code is not None
        self.events.close()
        self.attendance.close()
        return self._exit_code

    def _begin_term(self) -> None:
        """The past is what the journal says; whoever lives comes back within a time."""
        now_s, state = self._clock(), self.job.state
        if state.ending.over:
            self._exit_code = state.ending.exit_code
            return
        self.events.add_if_missing(self._past.notes)
        within_s = return_s(state.roster.live_count, relay_above=state.config.relay_above)
        for node in state.roster.live():
            if not node.stopped:
                self.silence.expect(node.node_id, now_s=now_s, within_s=within_s)
        away_s = 0.0 if self._past.last_s is None else max(0.0, now_s - self._past.last_s)
        self._handle(SupervisorStarted(event_id=next(self._ids), term=self.term, away_s=away_s))

    async def _loop(self) -> None:
        while self._exit_code is None:
            self._set_timer()
            await self._alarm.wait()
            self._alarm.clear()
            while self._events:
                some = [self._events.popleft() for _ in range(min(BATCH_MAX, len(self._events)))]
                self._handle(*lost_together(some))
            self._look_at_the_clock()

    def _set_timer(self) -> None:
        at_s = self._next_deadline_s()
        if self._timer is not None and at_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at_s - self._clock()), self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._alarm.set()

    # ------------------------------------------------------------ for attendance.py

    def now_s(self) -> float:
        return self._clock()

    def next_id(self) -> int:
        return next(self._ids)

    def enqueue(self, event: Event) -> None:
        self._events.append(event)
        self._alarm.set()

    def heard_of(self, node_id: str) -> int:
        """What waits for room on the disk may be lost with this process: agents are not told that it was heard."""
        return 0 if self._journal.trouble else self.job.state.roster.nodes[node_id].session.heard

    # ------------------------------------------------------------ for service.py and main.py: what people ask

    def stop(self, reason: str, exit_code: int) -> None:
        self.enqueue(StopRequested(event_id=next(self._ids), reason=reason, exit_code=exit_code))

    def write_checkpoint(self) -> None:
        self.enqueue(CheckpointRequested(event_id=next(self._ids)))

    async def inject(self, kind: str, target: int, step: int) -> str:
        """Returns "" once the injection is armed, else why it cannot be."""
        return await self._answer_to(InjectRequested(event_id=next(self._ids), kind=kind, target=target, step=step))

    async def drain(self, node: str, reason: str, *, undo: bool = False) -> str:
        """Returns "" once the node's ranks are on their way to a spare, or (`undo`) it may have some again; else why not."""
        return await self._answer_to(DrainRequested(event_id=next(self._ids), node=node, reason=reason, undo=undo))

    async def _answer_to(self, request: InjectRequested | DrainRequested) -> str:
        self._answers[request.event_id] = asyncio.get_running_loop().create_future()
        self.enqueue(request)
        return await self._answers[request.event_id]

    async def diagnose(self) -> Diagnosis:
        """Asks all members what their ranks are in, and returns what has been answered within a few seconds."""
        generation = self.job.state.generation
        members = {node.node_id for node in self.job.state.roster.members() if node.node_id in self.attendance}
        asked = CallsQuestion(generation, members)
        self._asked.append(asked)
        self.attendance.ask(members, ReportCalls(generation=generation))
        try:
            return await asked.diagnosis()
        finally:
            self._asked.remove(asked)

    def status(self) -> JobStatus:
        return job_status(self.job.state, self.pulse, now_s=self._clock())

    def measures(self) -> JobMeasures:
        now_s, committed_at_s = self._clock(), self.pulse.committed_at_s
        return JobMeasures(
            status=self.status(),
            spares=self.job.state.config.spares,
            seats=len(self.job.state.roster.seats),
            events=dict(self.events.counts),
            commit_age_s=None if committed_at_s is None else max(0.0, now_s - committed_at_s),
        )

    # ------------------------------------------------------------ the loop's parts

    def _handle(self, *events: Event) -> None:
        """BATCH_MAX at most."""
        now_s = self._clock()
        for event in events:
            self._watch(event, now_s)
        trouble = self._journal.trouble
        commands = self._journal.handle(*events, now_s=now_s)
        self._journal_asked(events, trouble)
        self._carry_out(commands)
        for event in events:
            if isinstance(event, FromAgent) and isinstance(event.message, Hello):  # Welcome is on its way
                self.attendance.joined(event.message)

    def _watch(self, event: Event, now_s: float) -> None:
        """What is seen of agents and steps beside the core."""
        if isinstance(event, FromAgent):
            self.silence.heard(event.node_id, now_s=now_s)
            if isinstance(event.message, Hello):
                self.silence.speaks_through(event.node_id, self.attendance.relay_of(event.node_id))
            if isinstance(event.message, Heartbeat):
                self.pulse.heard(event.node_id, event.message, now_s=now_s, wall_s=time.time())
                self._steps.heard(event.message, now_s=self.silence.attended_s(now_s))
                self._stragglers.heard(event.message, now_s=now_s)
            elif isinstance(event.message, CallReport):
                for asked in self._asked:
                    asked.heard(event.node_id, event.message)
            elif isinstance(event.message, Stopped):
                self.silence.forget(event.node_id)
        elif isinstance(event, NodesLost):
            for node_id in event.lost:
                self.silence.forget(node_id)
                self.attendance.lost(node_id)

    def _journal_asked(self, events: Sequence[Event], trouble: str) -> None:
        """What follows from whether what was written is on the disk now. `events`: that it was, if any; `trouble`: before it."""
        self._acknowledge(events, all_streams=bool(trouble))
        if bool(trouble) != bool(self._journal.trouble):
            self._say_of_journal(self._journal.trouble)

    def _say_of_journal(self, trouble: str) -> None:
        fields: dict[str, Value] = {"reason": trouble} if trouble else {}
        event = "journal_unwritable" if trouble else "journal_written_again"
        self.events.add(Note(cause="journal", event=event, generation=self.job.state.generation, fields=fields))

    def _look_at_the_clock(self) -> None:
        now_s = self._clock()
        if now_s >= self.silence.next_check_s():
            self.attendance.relays_silent(self.silence.silent_relays(now_s=now_s))
            silent = {node_id: f"silent for {silent_s:.1f} s" for node_id, silent_s in self.silence.check(now_s=now_s)}
            self.attendance.silent(silent)
            if silent:
                self._handle(NodesLost(event_id=next(self._ids), lost=silent))
        attended_s = self.silence.attended_s(now_s)
        state = self.job.state
        stall = self._steps.check(generation=stepping_generation(state), left=bool(state.failures.leavers), now_s=attended_s)
        if stall is not None:
            self._handle(
                StepsStalled(event_id=next(self._ids), generation=state.generation, stalled_s=stall.seconds, sure=stall.sure)
            )
        if state.phase is Phase.RUN and self._stragglers.due(now_s=now_s):
            nodes = {rank.rank: rank.node_id for rank in state.roster.playing()}
            for each in self._stragglers.check(nodes, generation=state.generation, now_s=now_s):
                self._handle(
                    StragglerJudged(
                        event_id=next(self._ids), generation=state.generation, rank=each.rank, node=each.node_id,
                        own_s=each.own_s, median_s=each.median_s, over=each.over,
                    )
                )  # fmt: skip
        trouble = self._journal.trouble
        while commands := self._journal.tick(now_s=now_s):
            self._journal_asked((), trouble)
            self._carry_out(commands)
            trouble = self._journal.trouble

    def _next_deadline_s(self) -> float:
        deadline_s = self.job.next_deadline_s()
        check_s = self.silence.next_check_s()
        return check_s if deadline_s is None else min(deadline_s, check_s)

    def _acknowledge(self, events: Sequence[Event], *, all_streams: bool) -> None:
        """What has been acted on, and is on the disk. `all_streams`: what waited for room may be there now as well."""
        if self._journal.trouble:
            return
        said = [event.node_id for event in events if isinstance(event, FromAgent) and event.number]
        self.attendance.acknowledge(None if all_streams else said)

    def _carry_out(self, commands: list[Command]) -> None:
        bodies: dict[int, bytes] = {}  # id of an order -> what is the same for all nodes that get it
        for command in commands:
            match command:
                case SendOrder(node_id=node_id, order=order, number=number):
                    self.attendance.send(node_id, order, number, bodies)
                case SendToAll(order=order, number=number):
                    self.attendance.send_to_all(order, number)
                case Note():
                    self.events.add(command)
                    if command.event in _RECOVERED and (ahead_s := self.pulse.clocks_that_differ_s()):
                        fields: dict[str, Value] = {"ahead_s": ahead_s}
                        self.events.add(replace(command, event="clocks_differ", fields=fields))
                case Answer(event_id=event_id, error=error):
                    answer = self._answers.pop(event_id)
                    if not answer.done():  # it may have been cancelled with its call
                        answer.set_result(error)
                case EndJob(root_cause=root_cause):
                    if root_cause:
                        tell(root_cause)
                case Quit(exit_code=exit_code):
                    self._exit_code = exit_code
                case KillSelf():
                    os.kill(os.getpid(), signal.SIGKILL)
                case _:
                    assert_never(command)
