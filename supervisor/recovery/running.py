"""A generation has been brought up: the job runs. Its ranks finish and are released: into another loop, or to the script's end.

Over JobState.
"""

from dataclasses import asdict

from deadpool.proto.messages import BeginLoop, RankFinished, Release
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import PHASE_OF_STAGE, RecoveryAttempt
from deadpool.supervisor.protection.checkpoints import ask_for_checkpoint


def lap(state: JobState, attempt: RecoveryAttempt, now_s: float) -> None:
    """The time since the last lap went into the present stage."""
    if state.recovery.story is not None:
        state.recovery.story.lap(PHASE_OF_STAGE[attempt.stage], now_s)


def runs(state: JobState, attempt: RecoveryAttempt, *, now_s: float, kept: bool) -> None:
    """The generation runs. `kept`: every rank that did not fail is played by the process of before."""
    recovery = state.recovery
    lap(state, attempt, now_s)
    state.move(Phase.RUN)
    recovery.attempt, recovery.draining = None, ""
    if recovery.story is None:
        state.note("started")
    else:
        returned = tuple(rank.rank for rank in state.roster.playing() if rank.stale)
        record = recovery.story.record(
            generation=state.generation,
            survivors_kept_processes=kept,
            job_began_s=state.account.began_s,
            excluded=state.roster.excluded_ranks(),
            returned=returned,
            groups_kept=sum(kept for kept, _ in attempt.groups.values()),
            groups_opened=sum(opened for _, opened in attempt.groups.values()),
        )
        recovery.records.append(record)
        furthest_step = max(recovery.story.ahead_step, recovery.story.resume_step)
        state.account.gone_back(furthest_step, newest_step=max(rank.step for rank in state.roster.playing()))
        recovery.story = None
        state.note(
            "restarted" if attempt.from_scratch else "recovered",  # all ranks' processes are there; or all have made a new step
            cause=record.cause,
            failure_class=record.failure_class,
            ranks=record.ranks,
            spare=record.spare,
            moved=record.moved,
            resume_step=record.resume_step,
            steps_reexecuted=record.steps_reexecuted,
            total_s=record.total_s,
            phases_s=asdict(record.phases_s),
            excluded=record.excluded,
            returned=record.returned,
            groups={"kept": record.groups_kept, "opened": record.groups_opened},
        )
    recovery.needed.clear()
    for rank in state.roster.playing():
        rank.stale = False
    ask_for_checkpoint(state)
    finish_if_done(state, now_s=now_s)


def finished(state: JobState, message: RankFinished, *, now_s: float) -> None:
    """A rank is at the end of its step loop."""
    if message.step <= state.progress.released_step:
        return  # said again, of a loop that is over
    state.roster.ranks[message.rank].finished = True
    state.progress.finished(message.step)
    finish_if_done(state, now_s=now_s)


def finish_if_done(state: JobState, *, now_s: float) -> None:
    """Every rank has finished: they are released. Every rank has exited with 0, be it in a first step: the job is done."""
    if state.phase not in (Phase.START, Phase.RUN, Phase.RECOVER, Phase.FINISH):
        return
    ranks = state.roster.playing()
    if all(rank.done for rank in ranks):
        state.end(0, "done", now_s=now_s)
    elif state.phase is Phase.RUN and all(rank.finished or rank.done for rank in ranks):
        state.move(Phase.FINISH)
        step = state.progress.released()
        state.note("released", step=step)
        for node in state.roster.members():
            state.send(node.node_id, Release(generation=state.generation, step=step))


def begin_next_loop(state: JobState) -> None:
    """Every rank has come to it: they go on with the next step."""
    state.move(Phase.RUN)
    for rank in state.roster.playing():
        rank.reopened = False
    step = state.progress.released_step
    state.note("loop_begins", step=step)
    for node in state.roster.members():
        state.send(node.node_id, BeginLoop(generation=state.generation, step=step))
    ask_for_checkpoint(state)
