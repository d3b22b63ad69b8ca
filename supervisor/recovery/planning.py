"""Everybody is prepared, or cannot be asked: the plan is made and sent, or there is none to be made. Over JobState."""

from collections import Counter
from collections.abc import Sequence

from deadpool.proto.messages import NO_STEP, Reform, SlotKind, Source, SourceKind, StoreOpened
from deadpool.supervisor.model.lineage import usable
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import RecoveryAttempt, Stage
from deadpool.supervisor.recovery import drained_ranks
from deadpool.supervisor.recovery.exclusion import cannot_exclude
from deadpool.supervisor.recovery.fresh_start import start_over
from deadpool.supervisor.recovery.keepers import replicas_placed
from deadpool.supervisor.recovery.orders import replace_outside
from deadpool.supervisor.recovery.plan import Bound, Live, Plan, as_good_as_committed, newest_alike, plan_recovery
from deadpool.supervisor.recovery.running import lap


def nothing_can_be_committed(state: JobState, attempt: RecoveryAttempt) -> bool:
    """Returns whether some rank has no sealed state anywhere, so that no step can ever have been committed."""
    if state.progress.commit_step != NO_STEP or not {node.node_id for node in state.roster.live()} <= attempt.reports.keys():
        return False
    held = {
        slot.rank
        for slots in attempt.reports.values()
        for slot in slots
        if usable(slot.generation, slot.step, state.recovery.lineage)
    }
    return any(rank.rank not in held for rank in state.roster.playing())


def plan_if_ready(state: JobState, attempt: RecoveryAttempt, *, now_s: float) -> None:
    if attempt.stage is Stage.QUIESCE and not attempt.behind[Stage.QUIESCE] and not attempt.killing:
        lap(state, attempt, now_s)
        attempt.enter(Stage.PLAN, now_s)
    if attempt.stage is Stage.PLAN and attempt.store is not None and not attempt.owing and not attempt.drained:
        _plan(state, attempt, attempt.store, now_s=now_s)


def _plan(state: JobState, attempt: RecoveryAttempt, store: StoreOpened, *, now_s: float) -> None:
    roster, story = state.roster, state.recovery.story
    assert story is not None
    if cannot_exclude(state, attempt, now_s=now_s):
        return
    plan, why = plan_recovery(
        homes=[rank.node_id for rank in roster.ranks],
        live=[
            Live(rank=each.rank, generation=each.live_generation, step=each.live_step)
            for each in attempt.prepared.values()
            if each.live_step != NO_STEP
        ],
        vaults={node: slots for node, slots in attempt.reports.items() if node != state.drill.without},
        endpoints={node.node_id: node.endpoint for node in roster.live()},
        lineage=state.recovery.lineage,
        conflicts=state.protection.conflicts,
        bounds=_bounds(state, attempt),
        excluded=roster.excluded_ranks(),
        stale=[rank.rank for rank in roster.playing() if rank.stale],
    )
    story.commit_known(state.progress.commit_step)
    if plan is None:
        _without_plan(state, why, now_s=now_s)
    elif (
        plan.resume_step == 0
    ):  # a first step must meet ranks that have not stepped: DDP sums in another order from its second on
        story.goes_back(0, newest_step=plan.newest_step)
        start_over(state, "no step is done yet that all ranks can go on from", now_s=now_s)
    elif not _replace_stranded(state, attempt, plan.resume_step, now_s=now_s):
        _go_back(state, attempt, plan, why)
        others = _go_on_without(state, plan.resume_step)
        drained_ranks.end(state)
        lap(state, attempt, now_s)
        attempt.enter(Stage.REFORM, now_s)
        yielded = plan.resume_step if others else max(plan.resume_step, roster.yielded())
        _send_plan(state, plan.resume_step, yielded, plan.sources, store)


def _bounds(state: JobState, attempt: RecoveryAttempt) -> list[Bound]:
    """Returns what the plan must go back for: only a step that is done again can be yielded, or compared.

    Whoever is excluded may have had a flipped bit, which all others have taken into their gradients' mean and hold alike since:
    where states are compared, none counts that was not compared with theirs.
    """
    roster = state.roster
    unyielded, bounds = roster.unyielded(), []
    if unyielded is not None:
        bounds.append(Bound(step=unyielded, what="the loop body that must run again"))
    if state.config.verify_every and any(not roster.ranks[rank].stale for rank in roster.excluded_ranks()):
        played = [rank.rank for rank in roster.ranks if not rank.stale]
        alike = newest_alike(played, vaults=attempt.reports, lineage=state.recovery.lineage)
        compared = max(state.progress.commit_step, alike)
        bounds.append(Bound(step=compared, what="the newest that was compared with those that are excluded"))
    return bounds


def _replace_stranded(state: JobState, attempt: RecoveryAttempt, resume_step: int, *, now_s: float) -> bool:
    """Fresh processes take over from those whose scripts are in another loop than the one that goes on from S_resume_step.

    The plan waits for them. They are told that step, so that they are in its loop: it may be that of another plan by then.
    """
    stranded = {
        rank
        for rank, each in attempt.prepared.items()
        if resume_step < each.earliest or (each.latest != NO_STEP and resume_step > each.latest)
    }
    if stranded:
        lap(state, attempt, now_s)
        attempt.enter(Stage.QUIESCE, now_s)
        attempt.hint_step = resume_step - 1
        replace_outside(state, stranded, f"step {resume_step} is of another loop than their scripts are in", now_s=now_s)
    return bool(stranded)


def _without_plan(state: JobState, why: str, *, now_s: float) -> None:
    """No memory holds a whole state (any more): all ranks start from scratch, and find the newest checkpoint by themselves."""
    commit_step, checkpoint_step, story = state.progress.commit_step, state.protection.checkpoint_step, state.recovery.story
    assert story is not None
    if commit_step == NO_STEP:
        start_over(state, f"no commit is known: {why}", now_s=now_s)
    elif checkpoint_step != NO_STEP:
        state.note("back_to_checkpoint", step=checkpoint_step, committed_step=commit_step, reason=why)
        reason = f"step {commit_step} was committed, but {why}: back to the checkpoint of step {checkpoint_step}"
        start_over(state, reason, now_s=now_s)
    else:
        reason = f"{'; '.join(story.causes)}; step {commit_step} was committed, but {why}"
        state.end(1, reason, now_s=now_s, details=story.first.details)


def _go_back(state: JobState, attempt: RecoveryAttempt, plan: Plan, why: str) -> None:
    """The job is at S_resume_step: what came after it is of a dead branch."""
    recovery, progress, story = state.recovery, state.progress, state.recovery.story
    assert story is not None
    if progress.commit_step > recovery.fruitful_step:
        recovery.fruitless, recovery.fruitful_step = 1, progress.commit_step
    recovery.fruitful_step = min(recovery.fruitful_step, plan.newest_step)
    story.ahead_step = max(story.ahead_step, _ahead_step(state, attempt))
    story.goes_back(plan.resume_step, newest_step=plan.newest_step)
    story.assumed_step = as_good_as_committed(
        plan.resume_step, commit_step=progress.commit_step, vaults=attempt.reports, lineage=recovery.lineage
    )
    progress.commit_known(story.assumed_step)
    progress.gone_back(plan.resume_step)
    recovery.branch(generation=state.generation, resume_step=plan.resume_step)
    unyielded = state.roster.unyielded()
    if unyielded is not None and unyielded < plan.resume_step:
        state.note("loop_body_lost", step=unyielded, reason=f"no rank can go back to step {unyielded} to run it again")
    ways = Counter(_way(source, state.roster.ranks[source.rank].node_id) for source in plan.sources)
    state.note("plan", resume_step=plan.resume_step, sources=dict(ways), reason=why)


def _way(source: Source, home: str) -> str:
    """Returns the source's kind, or that the replica is in the vault of the rank's own node, which was a spare until now."""
    at_home = source.kind is SourceKind.REPLICA and source.endpoint is not None and source.endpoint.node_id == home
    return "replica_at_home" if at_home else source.kind


def _go_on_without(state: JobState, resume_step: int) -> bool:
    """Takes note of who is excluded from S_resume_step on. Returns whether others make the steps from there than did so far.

    Then steps that are done again come to other values, and scripts get them once more.
    """
    recovery, roster = state.recovery, state.roster
    excluded = roster.excluded_ranks()
    if recovery.another_since_step >= resume_step:
        recovery.another_since_step = NO_STEP
    if excluded and recovery.another_since_step == NO_STEP:
        recovery.another_since_step = resume_step
    new = tuple(rank for rank in excluded if not roster.ranks[rank].stale)
    for rank in excluded:  # what its process of before, on a drained node, has said meanwhile is of no interest either
        known = roster.ranks[rank]
        known.stale, known.yielded, known.yielded_known = True, NO_STEP, False
    if new:
        state.note("excluded", ranks=new, resume_step=resume_step, reason="every other rank holds all that they held")
    return bool(new) or any(rank.stale for rank in roster.playing())


def _send_plan(state: JobState, resume_step: int, yielded: int, sources: Sequence[Source], store: StoreOpened) -> None:
    roster = state.roster
    source_of = {source.rank: source for source in sources}
    for rank in roster.playing():  # all do as the plan says; how far each has come with it they will say
        rank.yielded, rank.yielded_known = yielded, False
    all_placements = roster.all_placements(state.config)
    replicas_placed(state)
    for node_id, placements in all_placements:
        order = Reform(
            generation=state.generation,
            resume_step=resume_step,
            commit_step=state.progress.commit_step,
            yielded=yielded,
            store_host=store.host,
            store_port=store.port,
            placements=placements,
            sources=tuple(source_of[placement.rank] for placement in placements),
            excluded=roster.excluded_ranks(),
        )
        state.send(node_id, order)


def _ahead_step(state: JobState, attempt: RecoveryAttempt) -> int:
    """Returns the largest step that a rank which kept its process had in progress: it has S_step, live or else in its vault."""
    story = state.recovery.story
    assert story is not None
    survivors = [rank for rank in state.roster.playing() if rank.rank not in story.ranks]
    steps = [attempt.prepared[rank.rank].live_step for rank in survivors]
    for rank in survivors:
        slots = attempt.reports.get(rank.node_id, ())
        steps += [
            slot.step
            for slot in slots
            if slot.rank == rank.rank
            and slot.kind is SlotKind.SNAPSHOT
            and usable(slot.generation, slot.step, state.recovery.lineage)
        ]
    return max(steps, default=max(rank.step for rank in state.roster.ranks))
