"""The job, pure: events in, commands out. No I/O, clock, thread or randomness; time is passed in (monotonic seconds).

    ASSEMBLE -> START -> RUN -> FINISH -> END        what the shell owes: journal an event before the commands that it led to
                  ^       |  ^     |                 are carried out; call tick() when next_deadline_s() has come
                  |       v  |     |
                  +----- RECOVER <-+

Here: what happened. What a failure means is in diagnose.py, what is waited for in deadlines.py, how a generation is brought up in
protocol.py, what is known in state.py.
"""

from signal import Signals
from typing import assert_never

from deadpool.proto import messages
from deadpool.proto.config import CHECKPOINT_SIGNAL, JobConfig, stop_signals
from deadpool.supervisor.deadlines import deadlines, expired
from deadpool.supervisor.failures.handling import (
    collective_failed,
    failed,
    late,
    launch_failed,
    node_lost,
    rank_exited,
    rank_raised,
)
from deadpool.supervisor.failures.hang_inquiry import calls_reported, steps_stalled
from deadpool.supervisor.failures.health import heartbeat_read, hello_read
from deadpool.supervisor.injections import inject_requested, injection_due, step_reached
from deadpool.supervisor.model import session
from deadpool.supervisor.model.commands import Command
from deadpool.supervisor.model.events import (
    CheckpointRequested,
    DrainRequested,
    Event,
    FromAgent,
    InjectRequested,
    NodeLost,
    StepsStalled,
    StopRequested,
    SupervisorStarted,
)
from deadpool.supervisor.model.state import JobState, Phase
from deadpool.supervisor.model.timeline import Stage
from deadpool.supervisor.protection import protection
from deadpool.supervisor.recovery import drained_ranks, protocol
from deadpool.supervisor.recovery.drain import drain_requested

_STAGE_OF_MESSAGE: dict[type[object], Stage] = {
    messages.RankReformed: Stage.REFORM,
    messages.RankRestored: Stage.RESTORE,
    messages.RankResumed: Stage.FIRST_STEP,
}


class Job:
    """One job. `state` is everything it knows."""

    def __init__(self, config: JobConfig) -> None:
        self.state = JobState.new(config)

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Returns what is to be done because of the event."""
        state = self.state
        kind = type(event.message).__name__ if isinstance(event, FromAgent) else type(event).__name__
        state.cause, state.outbox = f"{event.event_id} {kind}", []
        match event:
            case FromAgent():
                if session.is_new(state, event):
                    self._heard(event.node_id, event.message, now_s)
            case NodeLost():
                node_lost(state, event.node_id, event.reason, now_s)
            case StepsStalled():
                steps_stalled(state, event, now_s)
            case StopRequested():
                if state.phase is not Phase.END:
                    state.end(event.exit_code, event.reason, now_s=now_s)
            case InjectRequested():
                inject_requested(state, event, now_s)
            case CheckpointRequested():
                protection.checkpoint_requested(state)
            case DrainRequested():
                drain_requested(state, event, now_s)
            case SupervisorStarted():
                session.supervisor_started(state, event)
            case _:
                assert_never(event)
        return state.outbox

    def next_deadline_s(self) -> float | None:
        """Returns when tick() must be called next, None when nothing is awaited."""
        return min((at_s for at_s, _ in deadlines(self.state)), default=None)

    def tick(self, *, now_s: float) -> list[Command]:
        """Returns what is to be done because deadlines have passed: the earliest one only, for it changes the others."""
        due = min(((at_s, name) for at_s, name in deadlines(self.state) if at_s <= now_s), default=None)
        if due is None:
            return []
        self.state.cause, self.state.outbox = f"deadline {due[1]}", []
        expired(self.state, due[1], now_s)
        return self.state.outbox

    # ------------------------------------------------------------ messages

    def _heard(self, node_id: str, message: messages.AgentMessage, now_s: float) -> None:
        state = self.state
        if isinstance(message, messages.Hello):
            self._hello(message, now_s)
            return
        node = state.roster.nodes.get(node_id)
        if node is None or not node.live:
            return
        match message:
            case messages.Stopped():
                node.stopped = True
                if state.phase is Phase.END:
                    state.quit_if_all_stopped()
            case messages.Heartbeat():
                node.session.obeyed(message.obeyed)
                self._heartbeat(node_id, message, now_s)
            case messages.InjectionDue():
                injection_due(state, node_id, message, now_s)
            case messages.CheckpointWritten():
                protection.checkpoint_written(state, node_id, message)
            case messages.HostTrouble():
                protection.host_trouble(state, node_id, message)
            case messages.JobSignalled():
                self._signalled(node_id, message.signal, now_s)
            case messages.RankJoined():
                self._rank_joined(node_id, message, now_s)
            case messages.RankExited():
                if state.leaving.get(message.rank) == node_id:
                    drained_ranks.forget(state, {message.rank})
                    if state.attempt is not None:
                        protocol.plan_if_ready(state, state.attempt, now_s=now_s)
                if (node_id, message.pid) in state.roster.retired:
                    state.roster.retired.discard((node_id, message.pid))
                elif state.roster.plays(node_id, message.rank, message.generation, message.pid):
                    rank_exited(state, node_id, message, now_s)
            case messages.LaunchFailed():
                starting = state.phase in (Phase.ASSEMBLE, Phase.START)
                if state.phase is not Phase.END and (starting or message.generation == state.generation):
                    launch_failed(state, node_id, message, now_s)
            case _:
                if isinstance(message, messages.RankRestored | messages.RankFailed):
                    protection.conflicts_told(state, message.conflicts)
                if message.generation == state.generation and state.phase is not Phase.END:
                    self._answered(node_id, message, now_s)

    def _signalled(self, node_id: str, number: int, now_s: float) -> None:
        """The signal means what it means to the launcher. It comes from every node to which it was sent: once is enough."""
        state = self.state
        if state.phase is Phase.END:
            return
        if number in stop_signals(state.config):
            state.end(128 + number, f"{Signals(number).name} came to {node_id}", now_s=now_s)
        elif number == CHECKPOINT_SIGNAL and not state.checkpoint_asked:
            protection.checkpoint_requested(state)

    def _answered(
        self,
        node_id: str,
        message: messages.StoreOpened
        | messages.VaultReport
        | messages.CallReport
        | messages.RankBroken
        | messages.RankRaised
        | messages.RankPrepared
        | messages.RankReformed
        | messages.RankRestored
        | messages.RankFailed
        | messages.RankResumed
        | messages.RankFinished
        | messages.ProtectionChanged
        | messages.StateDiffers,
        now_s: float,
    ) -> None:
        """A message of the present generation."""
        state = self.state
        match message:
            case messages.StoreOpened():
                protocol.store_opened(state, message, now_s=now_s)
                return
            case messages.VaultReport():
                protocol.vault_reported(state, message, node_id, now_s=now_s)
                return
            case messages.CallReport():
                failure = calls_reported(state, node_id, message, now_s)
                if failure is not None:
                    failed(state, failure, now_s)
                return
            case _:
                pass
        if isinstance(message, messages.RankPrepared) and state.leaving.get(message.rank) == node_id:
            state.heard_commit(message.commit_step)
            drained_ranks.prepared(state, message, node_id)
            return
        if not state.roster.plays(node_id, message.rank, message.generation):
            return
        rank = state.roster.ranks[message.rank]
        match message:
            case messages.RankBroken():
                collective_failed(state, node_id, message, now_s)
            case messages.RankRaised():
                rank_raised(state, node_id, message, now_s)
            case messages.RankPrepared():
                state.heard_commit(message.commit_step)
                protocol.prepared(state, message, node_id, now_s=now_s)
            case messages.RankReformed() | messages.RankRestored() | messages.RankResumed():
                if isinstance(message, messages.RankRestored):
                    _note_bad_copies(state, message.bad_copies)
                resumed = isinstance(message, messages.RankResumed) and state.config.standalone
                at_s = message.at_ns / 1e9 if resumed and isinstance(message, messages.RankResumed) else None
                protocol.passed(state, message.rank, _STAGE_OF_MESSAGE[type(message)], now_s=now_s, at_s=at_s)
            case messages.RankFailed():
                _note_bad_copies(state, message.bad_copies)
                cause = f"rank {message.rank} on {node_id} could not {message.phase}: {message.error}"
                late(state, cause, node_id, now_s, counted=not message.conflicts)  # the next plan is another one
            case messages.ProtectionChanged():
                protection.protection_changed(state, message)
            case messages.StateDiffers():
                protection.state_differs(state, message)
            case messages.RankFinished():
                rank.finished = True
                state.finished_step = max(state.finished_step, message.step)
                protocol.passed(state, message.rank, Stage.FIRST_STEP, now_s=now_s)
                protocol.finish_if_done(state, now_s=now_s)
            case _:
                assert_never(message)

    def _hello(self, hello: messages.Hello, now_s: float) -> None:
        state = self.state
        known = state.roster.nodes.get(hello.node_id)
        if known is not None and session.goes_on(known, hello):
            session.resume(state, known, hello, now_s=now_s)
            return
        if known is not None and known.live:
            node_lost(state, hello.node_id, "its agent has come back on a new stream", now_s)
        node = state.roster.add(hello, state.generation)
        state.note("node_joined", node=node.node_id, index=node.index, host=hello.host)
        hello_read(state, node.node_id, hello.readings)
        session.welcome(state, node)
        match state.phase:
            case Phase.END:
                state.send(node.node_id, messages.Stop(reason="the job has ended", grace_s=state.config.stop_grace_s))
            case Phase.ASSEMBLE:
                present, config = len(state.roster.live()), state.config
                if present >= config.fewest_nodes and state.assembled_s is None:
                    state.assembled_s = now_s
                if present >= config.nnodes + config.spares:
                    protocol.start_job(state, now_s=now_s)
            case Phase.START | Phase.RUN | Phase.RECOVER | Phase.FINISH:
                for armed in state.armed.values():
                    if not armed.spent:
                        state.send(node.node_id, armed.order())
                protocol.node_available(state, node.node_id, now_s=now_s)
            case _:
                assert_never(state.phase)

    def _heartbeat(self, node_id: str, heartbeat: messages.Heartbeat, now_s: float) -> None:
        state = self.state
        heartbeat_read(state, node_id, heartbeat)
        if heartbeat.generation < state.generation:
            return
        for progress in heartbeat.ranks:
            if progress.pid and state.roster.plays(node_id, progress.rank, heartbeat.generation, progress.pid):
                rank = state.roster.ranks[progress.rank]
                rank.pid, rank.step, rank.commit_step = progress.pid, progress.step, progress.commit_step
                if progress.stopped and rank.stopped_s is None:
                    state.note("rank_stopped", rank=rank.rank, node=node_id)
                rank.stopped_s = (now_s if rank.stopped_s is None else rank.stopped_s) if progress.stopped else None
                if progress.steps_done > 0 and not rank.joining:
                    state.built(rank, now_s)
                state.heard_commit(progress.commit_step)
                protocol.begun(state, now_s=now_s)
                step_reached(state, progress.step, now_s)

    def _rank_joined(self, node_id: str, joined: messages.RankJoined, now_s: float) -> None:
        state = self.state
        if not state.roster.plays(node_id, joined.rank, joined.generation, joined.pid) or state.phase is Phase.END:
            return
        rank = state.roster.ranks[joined.rank]
        rank.pid, rank.joined_s = joined.pid, now_s
        first = not state.hooked
        if first:
            state.hooked = True
            state.note("hooked", rank=joined.rank)
            for node in state.roster.live():
                protocol.warm_up(state, node.node_id)
        protocol.begun(state, now_s=now_s)
        gone = sorted(holder for holder in state.holders if not state.roster.nodes[holder].live)
        if first and gone:  # lost while nobody had joined, and so nobody needed it
            late(state, f"{', '.join(gone)} lost, which should hold replicas", gone[0], now_s)


def _note_bad_copies(state: JobState, copies: tuple[messages.BadCopy, ...]) -> None:
    for copy in copies:
        if copy in state.bad_copies:
            continue
        state.bad_copies.add(copy)
        state.note("bad_copy", node=copy.node_id, kind=copy.kind.value, rank=copy.rank, step=copy.step)
