"""The job, pure: events in, commands out. No I/O, clock, thread or randomness; time is passed in (monotonic seconds).

What the shell owes: journal an event before the commands that it led to are carried out; call tick() when next_deadline_s() has
come. From each phase (a row) the job moves on to those with an arrow (model/phase.py):

              assemble  start     run       recover   finish    end
    assemble  .         ->        .         .         .         ->
    start     .         ->        ->        ->        .         ->
    run       .         ->        .         ->        ->        ->
    recover   .         ->        ->        ->        .         ->
    finish    .         ->        ->        ->        .         ->
    end       .         .         .         .         .         .

Here: what happened. What a failure is taken for and what follows is in failures/handling.py, what is waited for in deadlines.py,
how a generation is brought up in recovery/protocol.py and recovery/fresh_start.py, what is known in model/state.py.
"""

from signal import Signals
from typing import assert_never

from deadpool.proto import messages
from deadpool.proto.config import CHECKPOINT_SIGNAL, JobConfig, stop_signals
from deadpool.supervisor import resumption
from deadpool.supervisor.deadlines import deadlines, expired
from deadpool.supervisor.failures.between_loops import reopened
from deadpool.supervisor.failures.handling import (
    calls_reported,
    collective_failed,
    first_step_made,
    late,
    launch_failed,
    nodes_lost,
    rank_exited,
    rank_raised,
    step_begun,
)
from deadpool.supervisor.failures.hang_inquiry import steps_stalled
from deadpool.supervisor.failures.health import heartbeat_read, hello_read
from deadpool.supervisor.injections import inject_requested, injection_due, step_reached
from deadpool.supervisor.model.commands import Command
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
)
from deadpool.supervisor.model.membership import Rank
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import Stage
from deadpool.supervisor.protection import checkpoints, corruption, host_pressure
from deadpool.supervisor.protection.edges import edge_changed
from deadpool.supervisor.protection.protection import protection_changed
from deadpool.supervisor.recovery import drained_ranks, drill, hot_nodes, protocol
from deadpool.supervisor.recovery.drain import drain_requested
from deadpool.supervisor.recovery.fresh_start import ranks_begun, start_job
from deadpool.supervisor.recovery.orders import warm_up
from deadpool.supervisor.recovery.planning import plan_if_ready
from deadpool.supervisor.recovery.ready_spares import readiness_read, settle
from deadpool.supervisor.recovery.running import finished
from deadpool.supervisor.recovery.stragglers import straggler_judged

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
        state.time_goes(now_s)
        kind = type(event.message).__name__ if isinstance(event, FromAgent) else type(event).__name__
        state.cause, state.outbox = f"{event.event_id} {kind}", []
        match event:
            case FromAgent():
                node = state.roster.nodes.get(event.node_id)
                if node is None or node.session.is_new(event.number):
                    self._heard(event.node_id, event.message, now_s)
            case NodesLost():
                nodes_lost(state, event.lost, now_s)
            case StepsStalled():
                steps_stalled(state, event, now_s)
            case StragglerJudged():
                straggler_judged(state, event, now_s)
            case StopRequested():
                if state.phase is not Phase.END:
                    state.end(event.exit_code, event.reason, now_s=now_s)
            case InjectRequested():
                inject_requested(state, event, now_s)
            case CheckpointRequested():
                checkpoints.checkpoint_requested(state)
            case DrainRequested():
                drain_requested(state, event, now_s)
            case SupervisorStarted():
                resumption.supervisor_started(state, event)
            case _:
                assert_never(event)
        settle(state, now_s=now_s)
        return state.outbox

    def next_deadline_s(self) -> float | None:
        """Returns when tick() must be called next, None when nothing is awaited."""
        return min((at_s for at_s, _ in deadlines(self.state)), default=None)

    def tick(self, *, now_s: float) -> list[Command]:
        """Returns what is to be done because deadlines have passed: the earliest one only, for it changes the others."""
        due = min(((at_s, name) for at_s, name in deadlines(self.state) if at_s <= now_s), default=None)
        if due is None:
            return []
        self.state.time_goes(now_s)
        self.state.cause, self.state.outbox = f"deadline {due[1]}", []
        expired(self.state, due[1], now_s)
        settle(self.state, now_s=now_s)
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
            case messages.RanksSaid():
                for word in message.words():
                    self._heard(node_id, word, now_s)
            case messages.InjectionDue():
                injection_due(state, node_id, message, now_s)
            case messages.CheckpointWritten():
                checkpoints.checkpoint_written(state, node_id, message)
                drill.checkpoint_known(state, now_s)
            case messages.RankJoined() | messages.RankPrepared() | messages.RankExited() if message.hot:
                hot_nodes.heard(state, node_id, message, now_s=now_s)
            case messages.RankExited() if (node_id, message.pid) in state.roster.retired:
                state.roster.retired.discard((node_id, message.pid))
                self._drained_ended(node_id, message, now_s)
            case messages.HostTrouble():
                host_pressure.host_trouble(state, node_id, message)
            case messages.EdgeChanged():
                edge_changed(state, node_id, message)
            case messages.JobSignalled():
                self._signalled(node_id, message.signal, now_s)
            case messages.RankJoined():
                self._rank_joined(node_id, message, now_s)
            case messages.RankExited():
                self._drained_ended(node_id, message, now_s)
                if state.roster.plays(node_id, message.rank, message.generation, message.pid):
                    rank_exited(state, node_id, message, now_s)
            case messages.LaunchFailed():
                starting = state.phase in (Phase.ASSEMBLE, Phase.START)
                if state.phase is not Phase.END and (starting or message.generation == state.generation):
                    launch_failed(state, node_id, message, now_s)
            case _:
                if isinstance(message, messages.RankRestored | messages.RankFailed):
                    corruption.conflicts_reported(state, message.conflicts)
                if message.generation == state.generation and state.phase is not Phase.END:
                    self._answered(node_id, message, now_s)

    def _drained_ended(self, node_id: str, exited: messages.RankExited, now_s: float) -> None:
        """A rank's process has ended: if one on a drained node was awaited for it, it is not any more."""
        state = self.state
        if state.recovery.drained.get(exited.rank) == node_id:
            drained_ranks.ended(state, exited)
            if state.recovery.attempt is not None:
                plan_if_ready(state, state.recovery.attempt, now_s=now_s)

    def _signalled(self, node_id: str, number: int, now_s: float) -> None:
        """The signal means what it means to the launcher. It comes from every node to which it was sent: once is enough."""
        state = self.state
        if state.phase is Phase.END:
            return
        if number in stop_signals(state.config):
            state.end(128 + number, f"{Signals(number).name} came to {node_id}", now_s=now_s)
        elif number == CHECKPOINT_SIGNAL and not state.protection.checkpoint_asked:
            checkpoints.checkpoint_requested(state)

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
        | messages.RankReopened
        | messages.ProtectionChanged
        | messages.StateDiffers
        | messages.DrillReady,
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
                calls_reported(state, node_id, message, now_s)
                return
            case _:
                pass
        if not state.roster.plays(node_id, message.rank, message.generation):
            if isinstance(message, messages.RankPrepared) and state.recovery.drained.get(message.rank) == node_id:
                state.progress.commit_known(message.commit_step)
                drained_ranks.prepared(state, message, node_id)
            return
        match message:
            case messages.RankBroken():
                collective_failed(state, node_id, message, now_s)
            case messages.RankRaised():
                rank_raised(state, node_id, message, now_s)
            case messages.RankPrepared():
                state.progress.commit_known(message.commit_step)
                protocol.prepared(state, message, node_id, now_s=now_s)
            case messages.RankReformed() | messages.RankRestored() | messages.RankResumed():
                if isinstance(message, messages.RankRestored):
                    corruption.bad_copies_reported(state, message.bad_copies)
                if isinstance(message, messages.RankReformed):
                    protocol.reformed(state, message)
                resumed = isinstance(message, messages.RankResumed) and state.config.standalone
                at_s = message.at_ns / 1e9 if resumed and isinstance(message, messages.RankResumed) else None
                protocol.passed(state, message.rank, _STAGE_OF_MESSAGE[type(message)], now_s=now_s, at_s=at_s)
                first_step_made(state, now_s)
            case messages.RankFailed():
                corruption.bad_copies_reported(state, message.bad_copies)
                cause = f"rank {message.rank} on {node_id} could not {message.phase}: {message.error}"
                late(state, cause, node_id, now_s, counted=not message.conflicts)  # the next plan is another one
            case messages.ProtectionChanged():
                protection_changed(state, message, now_s=now_s)
            case messages.DrillReady():
                drill.ready(state, message, now_s)
            case messages.StateDiffers():
                corruption.state_differs(state, message)
            case messages.RankFinished():
                protocol.passed(state, message.rank, Stage.FIRST_STEP, now_s=now_s)
                first_step_made(state, now_s)
                finished(state, message, now_s=now_s)
            case messages.RankReopened():
                reopened(state, message, now_s)
            case _:
                assert_never(message)

    def _hello(self, hello: messages.Hello, now_s: float) -> None:
        state = self.state
        known = state.roster.nodes.get(hello.node_id)
        if known is not None and known.live and known.session.is_of(hello):
            resumption.resume(state, known, hello, now_s=now_s)
            return
        if known is not None and known.live:
            nodes_lost(state, {hello.node_id: "its agent has come back on a new stream"}, now_s, comes_back=True)
        node = state.roster.add(hello, state.generation, dict(state.config.topology), orders_sent=state.orders.newest)
        state.note("node_joined", node=node.node_id, index=node.index, host=hello.host)
        hello_read(state, node.node_id, hello.readings)
        resumption.welcome(state, node)
        match state.phase:
            case Phase.END:
                state.send(node.node_id, messages.Stop(reason="the job has ended", grace_s=state.config.stop_grace_s))
            case Phase.ASSEMBLE:
                present, config = state.roster.live_count, state.config
                if present >= config.fewest_nodes and state.progress.assembled_s is None:
                    state.progress.assembled(now_s)
                if present >= config.nnodes + config.spares:
                    start_job(state, now_s=now_s)
            case Phase.START | Phase.RUN | Phase.RECOVER | Phase.FINISH:
                for armed in state.injections.values():
                    if not armed.spent:
                        state.send(node.node_id, armed.order())
                protocol.node_available(state, node.node_id, now_s=now_s)
            case _:
                assert_never(state.phase)

    def _heartbeat(self, node_id: str, heartbeat: messages.Heartbeat, now_s: float) -> None:
        state = self.state
        heartbeat_read(state, node_id, heartbeat)
        readiness_read(state, node_id, heartbeat.standins_ready)
        if heartbeat.generation < state.generation:
            return
        newest_step = messages.NO_STEP
        present = [
            progress
            for progress in heartbeat.ranks
            if progress.pid and state.roster.plays(node_id, progress.rank, heartbeat.generation, progress.pid)
        ]
        for progress in present:
            self._progressed(node_id, state.roster.ranks[progress.rank], progress, now_s)
            newest_step = max(newest_step, progress.step)
        if present:
            state.account.step_begun(newest_step)
            ranks_begun(state, now_s=now_s)
            step_reached(state, newest_step, now_s)
            step_begun(state, newest_step, now_s)

    def _progressed(self, node_id: str, rank: Rank, progress: messages.RankProgress, now_s: float) -> None:
        state = self.state
        rank.pid, rank.step, rank.commit_step = progress.pid, progress.step, progress.commit_step
        if progress.stopped != (rank.stopped_s is not None):
            if progress.stopped:
                state.note("rank_stopped", rank=rank.rank, node=node_id)
            state.roster.stop_seen(rank, now_s if progress.stopped else None)
        if progress.steps_done > 0 and not rank.joining:
            state.built(rank, now_s)
        state.progress.commit_known(progress.commit_step)

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
                warm_up(state, node.node_id)
        ranks_begun(state, now_s=now_s)
        gone = sorted(holder for holder in state.recovery.holders if not state.roster.nodes[holder].live) if first else []
        if gone:  # lost while nobody had joined, and so nobody needed it
            late(state, f"{', '.join(gone)} lost, which should hold replicas", gone[0], now_s)
