"""A recovery: survivors quiesce while joiners construct and rehearse; then plan, reform, restore, first step.

Free functions over JobState; core.py calls them when something happened. Each ends by looking whether the next stage can begin.
"""

from collections.abc import Sequence

from deadpool.proto.config import OnLoss
from deadpool.proto.messages import Quiesce, RankPrepared, RankReformed, StoreOpened, VaultReport
from deadpool.supervisor.model.failure import Failure, FailureClass
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.rank_bytes import RankBytes
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import PHASE_OF_STAGE, RecoveryAttempt, Stage, Story
from deadpool.supervisor.recovery import drained_ranks, fresh_start
from deadpool.supervisor.recovery.exclusion import exclude_lost, include_ready
from deadpool.supervisor.recovery.orders import assign, open_store, replace_outside, send_injections, warm_up
from deadpool.supervisor.recovery.planning import nothing_can_be_committed, plan_if_ready
from deadpool.supervisor.recovery.running import lap, runs
from deadpool.supervisor.recovery.seats import fill_seats

STORM_SEATS = 8  # while so many have no node in sight, whoever comes waits for others: each generation is an order to all nodes
_AFTER = {Stage.REFORM: Stage.RESTORE, Stage.RESTORE: Stage.FIRST_STEP}


def recover(
    state: JobState,
    failure: Failure,
    *,
    now_s: float,
    also: Sequence[Failure] = (),
    from_scratch: bool = False,
    counts_as_restart: bool = False,
) -> None:
    """A failure, at any moment: the next generation begins, or the job ends because there were too many without progress.

    `also`: others that were found with it; they are one recovery. `counts_as_restart`: it has been counted by itself.
    """
    released = state.phase is Phase.FINISH
    counts = False
    for each in (failure, *also):
        counts |= _add_to_story(state, each, now_s=now_s)
        if each.failure_class is not FailureClass.PLANNED:
            state.note("failure", cause=each.cause, failure_class=each.failure_class, node=each.node, ranks=each.ranks)
    cause = f"{failure.cause}; and {len(also)} more" if also else failure.cause
    recovery, limit = state.recovery, state.config.max_recoveries_without_progress
    recovery.fruitless += counts and not counts_as_restart
    if recovery.fruitless > limit:
        reason = f"{cause}; {limit} recoveries in a row have brought no new committed step"
        state.end(1, reason, now_s=now_s, details=failure.details)
    elif from_scratch:
        fresh_start.start_over(state, cause, now_s=now_s)
    else:
        begin(state, cause, now_s=now_s, released=released)


def restart(state: JobState, failure: Failure, *, now_s: float) -> None:
    """A script without join() has failed: all its ranks start anew, which is counted."""
    state.recovery.restarts += 1
    recover(state, failure, now_s=now_s, from_scratch=True, counts_as_restart=True)


def _add_to_story(state: JobState, failure: Failure, *, now_s: float) -> bool:
    """The failure begins a story, or becomes part of the present one; returns whether it is a recovery more."""
    recovery = state.recovery
    if recovery.story is not None:
        recovery.story.lap(PHASE_OF_STAGE[recovery.attempt.stage] if recovery.attempt else "decide", now_s)
        recovery.story.add(failure)
        return failure.counted
    if state.progress.commit_step > recovery.fruitful_step:
        recovery.fruitless, recovery.fruitful_step = 0, state.progress.commit_step
    state.account.was_recovering(failure.at_s)
    recovery.story = Story.begin(failure, generation=state.generation + 1, commit_step=state.progress.commit_step)
    recovery.story.lap("detect", now_s)
    recovery.story.add(failure)
    return failure.failure_class is not FailureClass.PLANNED


def begin(state: JobState, reason: str, *, now_s: float, released: bool = False) -> None:
    """A new generation from committed states: survivors quiesce while joiners construct and rehearse.

    `released`: the ranks were ordered to leave their step loops and cannot quiesce any more; all come back from the vault.
    """
    swapped = None if released else drained_ranks.move_with(state, now_s=now_s)
    if swapped is not None and state.recovery.story is not None:
        state.recovery.story.add(swapped)
    if not released:
        exclude_lost(state)
        include_ready(state)
    if not fill_seats(state, reason, now_s=now_s):
        return
    roster, generation = state.roster, state.next_generation()
    state.move(Phase.RECOVER)
    everyone = RankBytes.all(len(roster.ranks))
    for rank in roster.excluded_ranks():
        everyone.discard(rank)
    attempt = RecoveryAttempt(
        generation=generation,
        from_scratch=False,
        stage=Stage.QUIESCE,
        began_s=now_s,
        behind={stage: everyone.copy() for stage in (Stage.QUIESCE, Stage.REFORM, Stage.RESTORE, Stage.FIRST_STEP)},
        owing={node.node_id for node in roster.nodes.values() if node.live},
        drained=set(state.recovery.drained),
    )
    before, state.recovery.attempt = state.recovery.attempt, attempt
    if before is not None:  # whoever is being replaced still is
        attempt.outside = {rank for rank in before.outside & before.killing if roster.ranks[rank].present}
        attempt.killing, attempt.kill_deadline_s = set(attempt.outside), before.kill_deadline_s
        attempt.hint_step = before.hint_step
    state.note("generation", reason=reason, members=tuple(node.node_id for node in roster.members()))
    state.broadcast(Quiesce(generation=generation, reason=reason))
    for each in roster.ranks:
        each.finished = each.reopened = False
    if roster.vacancies():
        attempt.enter(Stage.SPARE, now_s)
        state.note("waiting_for_node", seats=tuple(roster.vacancies()), ranks=roster.without_node())
    else:
        open_store(state, attempt)
    if released or _restarts_all(state):
        present = {rank.rank for rank in roster.ranks if rank.present and (released or not rank.joining)}
        why = "they have left their step loops" if released else "all restart with the one that was lost"
        replace_outside(state, present - attempt.killing, why, now_s=now_s)
    for node_id in roster.short_of_processes():
        assign(state, node_id, now_s=now_s)
    send_injections(state)


def _restarts_all(state: JobState) -> bool:
    """Returns whether those that were not lost lose their processes as well. In a planned swap nothing was lost."""
    story = state.recovery.story
    return state.config.on_loss is OnLoss.RESTART and story is not None and story.classes != {FailureClass.PLANNED}


def store_opened(state: JobState, opened: StoreOpened, *, now_s: float) -> None:
    attempt = state.recovery.attempt
    if attempt is None or attempt.store is not None:
        return
    attempt.store = state.recovery.store = opened
    if attempt.stage is Stage.STORE:
        fresh_start.start_ranks(state, attempt, opened, now_s=now_s)
    else:
        plan_if_ready(state, attempt, now_s=now_s)


def prepared(state: JobState, message: RankPrepared, node_id: str, *, now_s: float) -> None:
    attempt, rank = state.recovery.attempt, state.roster.ranks[message.rank]
    if rank.joining:
        state.built(rank, now_s)
        state.roster.joins_no_more(rank)
    if attempt is None or attempt.stage not in (Stage.SPARE, Stage.QUIESCE, Stage.PLAN):
        return
    if message.outside:
        replace_outside(state, {message.rank} - attempt.killing, "their loop bodies wait for ranks that are gone", now_s=now_s)
        return
    attempt.prepared[message.rank] = message
    state.roster.yields(rank, message.yielded)
    attempt.owing.add(node_id)
    attempt.passed(message.rank, Stage.QUIESCE)
    plan_if_ready(state, attempt, now_s=now_s)


def vault_reported(state: JobState, report: VaultReport, node_id: str, *, now_s: float) -> None:
    attempt = state.recovery.attempt
    if attempt is None or attempt.from_scratch or attempt.stage not in (Stage.QUIESCE, Stage.PLAN):
        return
    attempt.reports[node_id] = report.slots
    attempt.owing.discard(node_id)
    if attempt.stage is Stage.QUIESCE and nothing_can_be_committed(state, attempt):
        fresh_start.start_over(state, "no commit is known", now_s=now_s)
        return
    plan_if_ready(state, attempt, now_s=now_s)


def node_available(state: JobState, node_id: str, *, now_s: float) -> None:
    """A spare has come, or come back: it is warmed up, and takes a vacant seat."""
    warm_up(state, node_id)
    if state.roster.nodes[node_id].role is not NodeRole.SPARE or fresh_start.grow(state, node_id, now_s=now_s):
        return
    attempt, story = state.recovery.attempt, state.recovery.story
    wanted = len(state.roster.vacancies()) if attempt is not None else 0
    if attempt is None or not wanted or wanted - len(state.roster.spares()) >= STORM_SEATS:
        return
    if story is not None:
        story.lap("decide", now_s)
    again = fresh_start.start_over if attempt.from_scratch else begin
    again(state, f"{node_id} has come", now_s=now_s)


def vault_gone(state: JobState, node_id: str, *, now_s: float) -> None:
    """A node without ranks is lost while a plan is being awaited: nothing is owed by it, and it can serve nothing."""
    attempt = state.recovery.attempt
    if attempt is None or attempt.from_scratch:
        return
    attempt.reports.pop(node_id, None)
    attempt.owing.discard(node_id)
    if attempt.store_node == node_id and attempt.store is None:
        open_store(state, attempt)
    plan_if_ready(state, attempt, now_s=now_s)


def reformed(state: JobState, message: RankReformed) -> None:
    """A rank has its groups open."""
    if state.recovery.attempt is not None:
        state.recovery.attempt.groups[message.rank] = (message.groups_kept, message.groups_opened)


def passed(state: JobState, rank: int, stage: Stage, *, now_s: float, at_s: float | None = None) -> None:
    """A rank is past reform, restore or its first step. `at_s`: when, if its clock is ours."""
    attempt, story = state.recovery.attempt, state.recovery.story
    if attempt is None or attempt.stage not in (Stage.REFORM, Stage.RESTORE, Stage.FIRST_STEP):
        return
    attempt.passed(rank, stage)
    if stage is Stage.FIRST_STEP:
        if story is not None:
            story.stepped = True
        attempt.last_at_s = max(attempt.last_at_s, now_s if at_s is None else min(at_s, now_s))
    while not attempt.behind[attempt.stage]:
        if attempt.stage is Stage.FIRST_STEP:
            runs(state, attempt, now_s=attempt.last_at_s, kept=_survivors_kept(state))
            return
        lap(state, attempt, now_s)
        attempt.enter(_AFTER[attempt.stage], now_s)


def _survivors_kept(state: JobState) -> bool:
    """Returns whether every rank that did not fail is played by the process of before."""
    story = state.recovery.story
    assert story is not None
    return not story.replaced and all(
        (rank.present and rank.since < story.began_generation) or rank.rank in story.ranks for rank in state.roster.playing()
    )
