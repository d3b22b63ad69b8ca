"""Bringing a generation up: begin, quiesce, plan, reform, restore, first step; or start all ranks afresh.

Free functions over JobState; core.py calls them when something happened. Each ends by looking whether the next stage can begin.
"""

from deadpool.proto.config import OnExhausted
from deadpool.proto.messages import (
    NO_STEP,
    Assign,
    KillRanks,
    OpenStore,
    Quiesce,
    RankPrepared,
    Reform,
    Release,
    SlotKind,
    StartRanks,
    StoreOpened,
    VaultReport,
    WarmUp,
)
from deadpool.supervisor.failures.classify import FailureClass
from deadpool.supervisor.model.membership import NodeRole, choose_members, choose_spare
from deadpool.supervisor.model.state import JobState, Phase
from deadpool.supervisor.model.timeline import PHASE_OF_STAGE, Failure, RecoveryAttempt, Stage, Story
from deadpool.supervisor.protection.protection import ask_for_checkpoint
from deadpool.supervisor.recovery import drained_ranks
from deadpool.supervisor.recovery.plan import Live, Sent, as_good_as_committed, plan_recovery, usable

KILL_TIMEOUT_S = 10.0  # SIGKILL to the exit seen: longer means that the node is broken
_AFTER = {Stage.REFORM: Stage.RESTORE, Stage.RESTORE: Stage.FIRST_STEP}


def start_job(state: JobState, *, now_s: float) -> None:
    """Enough agents are there: seats are taken, and the ranks start."""
    for node_rank, node_id in enumerate(choose_members(state.roster.live(), state.config.nnodes)):
        state.roster.take_seat(node_rank, node_id)
    begin_afresh(state, "the job starts", now_s=now_s)


def recover(state: JobState, failure: Failure, *, now_s: float, afresh: bool = False) -> None:
    """A failure, at any moment: the next generation begins, or the job ends because the like has happened too often."""
    released = state.phase is Phase.FINISH
    if state.story is None:
        if state.commit_step > state.fruitful_step:
            state.fruitless, state.fruitful_step = 0, state.commit_step
        pids = {rank.rank: rank.pid for rank in state.roster.ranks if rank.present and rank.rank not in failure.ranks}
        state.story = Story.begin(failure, generation=state.generation + 1, pids=pids, commit_step=state.commit_step)
        state.story.lap("detect", now_s)
        counts = failure.failure_class is not FailureClass.PLANNED
    else:
        counts = failure.counted
        state.story.lap(PHASE_OF_STAGE[state.attempt.stage] if state.attempt else "decide", now_s)
    state.story.add(failure)
    if failure.failure_class is not FailureClass.PLANNED:
        state.note("failure", cause=failure.cause, failure_class=failure.failure_class, node=failure.node, ranks=failure.ranks)
    limit = state.config.max_recoveries_without_progress
    if state.hooked or (state.attempt is not None and state.attempt.stage is not Stage.BEGIN):
        state.fruitless += counts  # an unhooked job has max_restarts instead
    if state.fruitless > limit:
        reason = f"{failure.cause}; {limit} recoveries in a row have brought no new committed step"
        state.end(1, reason, now_s=now_s, details=failure.details)
    elif afresh:
        begin_afresh(state, failure.cause, now_s=now_s)
    else:
        begin(state, failure.cause, now_s=now_s, released=released)


def begin(state: JobState, reason: str, *, now_s: float, released: bool = False) -> None:
    """A new generation from committed states: survivors quiesce while joiners construct and rehearse.

    `released`: the ranks were told to leave their step loops and cannot quiesce any more; all come back from the vault.
    """
    if not _fill_seats(state, reason, now_s=now_s):
        return
    roster, generation = state.roster, state.generation + 1
    state.generation, state.broken_collective, state.exit_expected_until_s = generation, None, 0.0
    state.move(Phase.RECOVER)
    attempt = RecoveryAttempt(generation=generation, afresh=False, stage=Stage.QUIESCE, began_s=now_s)
    if state.attempt is not None:  # whoever is being replaced still is
        attempt.outside = {rank for rank in state.attempt.outside & state.attempt.killing if roster.ranks[rank].present}
        attempt.killing, attempt.kill_deadline_s = set(attempt.outside), state.attempt.kill_deadline_s
    state.attempt = attempt
    everyone = {rank.rank for rank in roster.ranks}
    attempt.behind = {Stage.QUIESCE: everyone, Stage.REFORM: set(everyone), Stage.RESTORE: set(everyone)}
    attempt.behind[Stage.FIRST_STEP] = set(everyone)
    attempt.owing = {node.node_id for node in roster.live()}
    attempt.leaving = set(state.leaving)
    state.note("generation", reason=reason, members=tuple(node.node_id for node in roster.members()))
    state.broadcast(Quiesce(generation=generation, reason=reason))
    for rank in roster.ranks:
        rank.finished = False
    if roster.vacancies():
        attempt.enter(Stage.SPARE, now_s)
        state.note("waiting_for_node", seats=tuple(roster.vacancies()))
    else:
        _open_store(state, attempt)
    if released:
        replace_outside(
            state, {rank.rank for rank in roster.ranks if rank.present}, "they have left their step loops", now_s=now_s
        )
    for node in roster.members():
        assign(state, node.node_id, now_s=now_s)
    send_injections(state)


def begin_afresh(state: JobState, reason: str, *, now_s: float) -> None:
    """A new generation from nothing: every rank gets a new process once the store is open."""
    _fit_seats(state)
    if not _fill_seats(state, reason, now_s=now_s):
        return
    roster = state.roster
    state.generation, state.broken_collective, state.exit_expected_until_s = state.generation + 1, None, 0.0
    state.lineage.append(Sent(generation=state.generation, resume_step=NO_STEP))
    state.commit_step = NO_STEP  # of what the vaults hold, and that is of a dead branch now
    state.fruitful_step = min(state.fruitful_step, max(0, state.checkpoint_step))  # to be back there is no progress
    attempt = RecoveryAttempt(generation=state.generation, afresh=True, stage=Stage.STORE, began_s=now_s)
    state.attempt = attempt
    for rank in roster.ranks:
        roster.retire(rank)
        rank.since = state.generation
        rank.yielded, rank.yielded_known = NO_STEP, False
    drained_ranks.end(state)
    state.note("generation", reason=reason, afresh=True, members=tuple(node.node_id for node in roster.members()))
    if not roster.vacancies():
        state.move(Phase.START)
        _open_store(state, attempt)
        return
    state.move(Phase.RECOVER)
    attempt.enter(Stage.SPARE, now_s)
    state.note("waiting_for_node", seats=tuple(roster.vacancies()))
    for node in roster.members():
        ranks = tuple(rank.rank for rank in roster.of_node(node.node_id))
        state.send(node.node_id, KillRanks(generation=state.generation, ranks=ranks, reason="the job waits for a node"))


def store_opened(state: JobState, opened: StoreOpened, *, now_s: float) -> None:
    attempt = state.attempt
    if attempt is None or attempt.store is not None:
        return
    attempt.store = opened
    if attempt.stage is not Stage.STORE:
        plan_if_ready(state, attempt, now_s=now_s)
        return
    config, roster = state.config, state.roster
    _lap(state, attempt, now_s)
    attempt.enter(Stage.BEGIN, now_s)
    state.holders = frozenset()
    for node in roster.members():
        for rank in roster.of_node(node.node_id):
            roster.give_process(rank, generation=state.generation, now_s=now_s, joining=False)
        placements = roster.placements(node.node_id, config.replicas)
        state.holders |= {holder.node_id for placement in placements for holder in placement.holders}
        order = StartRanks(
            generation=state.generation,
            world_size=len(roster.ranks),
            placements=placements,
            store_host=opened.host,
            store_port=opened.port,
            master_node_count=len(roster.seats),
            restart_count=state.restarts,
        )
        state.send(node.node_id, order)
    send_injections(state)


def begun(state: JobState, *, now_s: float) -> None:
    """The ranks that were started afresh run."""
    attempt = state.attempt
    if attempt is None or attempt.stage is not Stage.BEGIN:
        return
    if state.story is not None:
        step = max(0, state.checkpoint_step) if state.hooked else NO_STEP  # else only the script knows
        state.story.goes_back(step, newest_step=step)
    _done(state, attempt, now_s=now_s, kept=False)


def prepared(state: JobState, message: RankPrepared, node_id: str, *, now_s: float) -> None:
    attempt, rank = state.attempt, state.roster.ranks[message.rank]
    if rank.joining:
        state.built(rank, now_s)
    rank.joining = False
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
    attempt = state.attempt
    if attempt is None or attempt.afresh or attempt.stage not in (Stage.QUIESCE, Stage.PLAN):
        return
    attempt.reports[node_id] = report.slots
    attempt.owing.discard(node_id)
    if attempt.stage is Stage.QUIESCE and _nothing_can_be_committed(state, attempt):
        begin_afresh(state, "no commit is known", now_s=now_s)
        return
    plan_if_ready(state, attempt, now_s=now_s)


def node_available(state: JobState, node_id: str, *, now_s: float) -> None:
    """A spare has come, or come back: it is warmed up, and takes a vacant seat."""
    warm_up(state, node_id)
    if state.roster.nodes[node_id].role is not NodeRole.SPARE or grow(state, node_id, now_s=now_s):
        return
    if state.attempt is not None and state.roster.vacancies():
        again = begin_afresh if state.attempt.afresh else begin
        if state.story is not None:
            state.story.lap("decide", now_s)
        again(state, f"{node_id} has come", now_s=now_s)


def vault_gone(state: JobState, node_id: str, *, now_s: float) -> None:
    """A node without ranks is lost while a plan is being awaited: nothing is owed by it, and it can serve nothing."""
    attempt = state.attempt
    if attempt is None or attempt.afresh:
        return
    attempt.reports.pop(node_id, None)
    attempt.owing.discard(node_id)
    if attempt.store_node == node_id and attempt.store is None:
        _open_store(state, attempt)
    plan_if_ready(state, attempt, now_s=now_s)


def passed(state: JobState, rank: int, stage: Stage, *, now_s: float, at_s: float | None = None) -> None:
    """A rank is past reform, restore or its first step. `at_s`: when, if its clock is ours."""
    attempt = state.attempt
    if attempt is None or attempt.stage not in (Stage.REFORM, Stage.RESTORE, Stage.FIRST_STEP):
        return
    attempt.passed(rank, stage)
    if stage is Stage.FIRST_STEP:
        if state.story is not None:
            state.story.stepped = True
        attempt.last_at_s = max(attempt.last_at_s, now_s if at_s is None else min(at_s, now_s))
    while not attempt.behind[attempt.stage]:
        if attempt.stage is Stage.FIRST_STEP:
            _done(state, attempt, now_s=attempt.last_at_s, kept=_survivors_kept(state))
            return
        _lap(state, attempt, now_s)
        attempt.enter(_AFTER[attempt.stage], now_s)


def finish_if_done(state: JobState, *, now_s: float) -> None:
    """Every rank has finished: they are released. Every rank has exited with 0: the job is done."""
    if state.phase not in (Phase.START, Phase.RUN, Phase.FINISH):
        return
    ranks = state.roster.ranks
    if all(rank.done for rank in ranks):
        state.end(0, "done", now_s=now_s)
    elif state.phase is Phase.RUN and all(rank.finished or rank.done for rank in ranks):
        state.move(Phase.FINISH)
        state.note("released", step=state.finished_step)
        for node in state.roster.members():
            state.send(node.node_id, Release(generation=state.generation))


def warm_up(state: JobState, node_id: str) -> None:
    """Members keep one stand-in, spares one for each rank they may get. Only a job with hooks has any."""
    role = state.roster.nodes[node_id].role
    if state.hooked and role in (NodeRole.MEMBER, NodeRole.SPARE):
        state.send(node_id, WarmUp(standins=1 if role is NodeRole.MEMBER else state.config.nproc_per_node))


def send_injections(state: JobState) -> None:
    for armed in state.armed.values():
        if not armed.spent:
            state.broadcast(armed.order())


def _fit_seats(state: JobState) -> None:
    """A job with a range of nodes has as many seats as there are nodes for it; not a hooked one, whose ranks keep their state."""
    roster, config = state.roster, state.config
    present = len(roster.members()) + len(roster.spares())
    nnodes = max(config.fewest_nodes, min(config.nnodes, present))
    if not state.hooked and nnodes != len(roster.seats):
        roster.resize(nnodes)
        state.note("resized", nnodes=nnodes)


def grow(state: JobState, node_id: str, *, now_s: float) -> bool:
    """Restarts the ranks of a job that runs with fewer nodes than it may, now that one has come. Returns whether it did."""
    room = len(state.roster.seats) < state.config.nnodes
    if state.hooked or not room or state.phase not in (Phase.START, Phase.RUN) or any(rank.done for rank in state.roster.ranks):
        return False
    begin_afresh(state, f"{node_id} has come", now_s=now_s)
    return True


def _fill_seats(state: JobState, reason: str, *, now_s: float) -> bool:
    """Gives each vacant seat a spare. Returns False when the job has ended for want of one; with `wait` seats stay vacant."""
    for node_rank in state.roster.vacancies():
        spare, why = choose_spare(state.roster.nodes)
        draining = state.roster.nodes.get(state.draining)
        if spare is None and draining is not None and draining.role is NodeRole.DRAINED:  # its ranks have nowhere else to go
            drained_ranks.take_back(state, draining)
            state.note("drain_undone", node=draining.node_id, reason=why)
            spare, why = choose_spare(state.roster.nodes)
        if spare is not None:
            state.roster.take_seat(node_rank, spare)
            if state.story is not None:
                state.story.spares.append(spare)
            state.note("spare_chosen", node=spare, seat=node_rank, reason=why)
        elif state.config.on_exhausted is OnExhausted.ABORT:
            state.end(1, f"{reason}; {why} (--on-exhausted abort)", now_s=now_s)
            return False
    return True


def kill(state: JobState, ranks: set[int], reason: str, *, now_s: float) -> None:
    """These ranks' processes are killed; each is replaced on its node when it was seen to exit."""
    attempt = state.attempt
    assert attempt is not None
    attempt.killing |= ranks
    attempt.kill_deadline_s = now_s + KILL_TIMEOUT_S
    for node in state.roster.members():
        numbers = tuple(rank.rank for rank in state.roster.of_node(node.node_id) if rank.rank in ranks)
        if numbers:
            state.note("ranks_killed", node=node.node_id, ranks=numbers, reason=reason)
            state.send(node.node_id, KillRanks(generation=state.generation, ranks=numbers, reason=reason))


def replace_outside(state: JobState, ranks: set[int], reason: str, *, now_s: float) -> None:
    """These ranks' processes have not failed, but their scripts are where they cannot go back to a step from: fresh ones do."""
    assert state.attempt is not None
    state.attempt.outside |= ranks
    if ranks:
        kill(state, ranks, reason, now_s=now_s)


def assign(state: JobState, node_id: str, *, now_s: float) -> None:
    """Orders a process for each of the node's ranks that has none."""
    absent = [rank for rank in state.roster.of_node(node_id) if not rank.present]
    if not absent:
        return
    attempt = state.attempt
    assert attempt is not None
    for rank in absent:
        state.roster.give_process(rank, generation=state.generation, now_s=now_s, joining=True)
        attempt.behind[Stage.QUIESCE].add(rank.rank)
        attempt.prepared.pop(rank.rank, None)
    numbers = {rank.rank for rank in absent}
    placements = state.roster.placements(node_id, state.config.replicas)
    order = Assign(
        generation=state.generation,
        world_size=len(state.roster.ranks),
        placements=tuple(placement for placement in placements if placement.rank in numbers),
        hint_step=max(0, state.commit_step, *(rank.step for rank in state.roster.ranks)),
        master_node_count=len(state.roster.seats),
        restart_count=state.restarts,
    )
    state.send(node_id, order)
    warm_up(state, node_id)


def _open_store(state: JobState, attempt: RecoveryAttempt) -> None:
    """Asks a member for the generation's store: one that was in the job before, another one after each failure to open it."""
    survivors = [rank.node_id for rank in state.roster.ranks if rank.present and not rank.joining]
    candidates = list(dict.fromkeys(survivors)) or [node.node_id for node in state.roster.members()]
    attempt.store_node = candidates[state.store_failures % len(candidates)]
    state.send(attempt.store_node, OpenStore(generation=attempt.generation))


def _nothing_can_be_committed(state: JobState, attempt: RecoveryAttempt) -> bool:
    """Returns whether some rank has no sealed state anywhere, so that no step can ever have been committed."""
    if state.commit_step != NO_STEP or not {node.node_id for node in state.roster.live()} <= attempt.reports.keys():
        return False
    held = {
        slot.rank for slots in attempt.reports.values() for slot in slots if usable(slot.generation, slot.step, state.lineage)
    }
    return any(rank.rank not in held for rank in state.roster.ranks)


def plan_if_ready(state: JobState, attempt: RecoveryAttempt, *, now_s: float) -> None:
    if attempt.stage is Stage.QUIESCE and not attempt.behind[Stage.QUIESCE] and not attempt.killing:
        _lap(state, attempt, now_s)
        attempt.enter(Stage.PLAN, now_s)
    if attempt.stage is Stage.PLAN and attempt.store is not None and not attempt.owing and not attempt.leaving:
        _plan(state, attempt, attempt.store, now_s=now_s)


def _plan(state: JobState, attempt: RecoveryAttempt, store: StoreOpened, *, now_s: float) -> None:
    config, roster, story = state.config, state.roster, state.story
    assert story is not None
    plan, why = plan_recovery(
        homes=[rank.node_id for rank in roster.ranks],
        live=[
            Live(rank=each.rank, generation=each.live_generation, step=each.live_step)
            for each in attempt.prepared.values()
            if each.live_step != NO_STEP
        ],
        vaults=attempt.reports,
        endpoints={node.node_id: node.endpoint for node in roster.live()},
        lineage=state.lineage,
        conflicts=state.conflicts,
        unyielded=roster.unyielded(),
    )
    story.commit_known(state.commit_step)
    if plan is None:
        if state.commit_step == NO_STEP:
            begin_afresh(state, f"no commit is known: {why}", now_s=now_s)
        elif state.checkpoint_step != NO_STEP:
            _back_to_checkpoint(state, why, now_s=now_s)
        else:
            reason = f"{'; '.join(story.causes)}; step {state.commit_step} was committed, but {why}"
            state.end(1, reason, now_s=now_s, details=story.first.details)
        return
    if plan.resume_step == 0:  # a first step must meet ranks that have not stepped: DDP sums in another order from its second on
        story.goes_back(0, newest_step=plan.newest_step)
        begin_afresh(state, "no step is done yet that all ranks can go on from", now_s=now_s)
        return
    if state.commit_step > state.fruitful_step:
        state.fruitless, state.fruitful_step = 1, state.commit_step
    story.ahead_step = max(story.ahead_step, _ahead_step(state, attempt))
    story.goes_back(plan.resume_step, newest_step=plan.newest_step)
    attempt.resume_step = plan.resume_step
    state.heard_commit(
        as_good_as_committed(plan.resume_step, commit_step=state.commit_step, vaults=attempt.reports, lineage=state.lineage)
    )
    state.commit_step = min(state.commit_step, plan.resume_step)  # what is lost is lost once
    state.fruitful_step = min(state.fruitful_step, plan.newest_step)
    state.lineage.append(Sent(generation=state.generation, resume_step=plan.resume_step))
    kinds: dict[str, float] = {}
    for source in plan.sources:
        kinds[source.kind] = kinds.get(source.kind, 0) + 1
    unyielded = roster.unyielded()
    if unyielded is not None and unyielded < plan.resume_step:
        state.note("loop_body_lost", step=unyielded, reason=f"no rank can go back to step {unyielded} to run it again")
    state.note("plan", resume_step=plan.resume_step, sources=kinds, reason=why)
    drained_ranks.end(state)
    _lap(state, attempt, now_s)
    attempt.enter(Stage.REFORM, now_s)
    yielded = max(plan.resume_step, roster.yielded())
    for rank in roster.ranks:  # all do as the plan says; how far each has come with it they will say
        rank.yielded, rank.yielded_known = yielded, False
    state.holders = frozenset()
    for node in roster.members():
        placements = roster.placements(node.node_id, config.replicas)
        state.holders |= {holder.node_id for placement in placements for holder in placement.holders}
        order = Reform(
            generation=state.generation,
            resume_step=plan.resume_step,
            commit_step=state.commit_step,
            yielded=yielded,
            store_host=store.host,
            store_port=store.port,
            placements=placements,
            sources=tuple(plan.sources[placement.rank] for placement in placements),
        )
        state.send(node.node_id, order)


def _back_to_checkpoint(state: JobState, why: str, *, now_s: float) -> None:
    """No memory holds a whole state any more: all ranks start afresh, and find the newest checkpoint by themselves."""
    reason = f"step {state.commit_step} was committed, but {why}: back to the checkpoint of step {state.checkpoint_step}"
    state.note("back_to_checkpoint", step=state.checkpoint_step, committed_step=state.commit_step, reason=why)
    begin_afresh(state, reason, now_s=now_s)


def _ahead_step(state: JobState, attempt: RecoveryAttempt) -> int:
    """Returns the largest step that a rank which kept its process had in progress: it has S_step, live or else in its vault."""
    story = state.story
    assert story is not None
    survivors = [rank for rank in state.roster.ranks if rank.rank not in story.ranks]
    steps = [attempt.prepared[rank.rank].live_step for rank in survivors]
    for rank in survivors:
        slots = attempt.reports.get(rank.node_id, ())
        steps += [
            slot.step
            for slot in slots
            if slot.rank == rank.rank and slot.kind is SlotKind.SNAPSHOT and usable(slot.generation, slot.step, state.lineage)
        ]
    return max(steps, default=max(rank.step for rank in state.roster.ranks))


def _survivors_kept(state: JobState) -> bool:
    """Returns whether every rank that did not fail is played by the process of before."""
    story = state.story
    assert story is not None
    now = state.roster.ranks
    return all(
        now[rank].since < story.began_generation and pid in (0, now[rank].pid)
        for rank, pid in story.pids.items()
        if rank not in story.ranks
    ) and all(rank in story.pids or rank in story.ranks for rank in range(len(now)))


def _done(state: JobState, attempt: RecoveryAttempt, *, now_s: float, kept: bool) -> None:
    """The generation runs."""
    _lap(state, attempt, now_s)
    state.move(Phase.RUN)
    state.attempt, state.draining = None, ""
    if state.story is None:
        state.note("started")
    else:
        record = state.story.record(generation=state.generation, survivors_kept_processes=kept)
        state.records.append(record)
        state.story = None
        state.note(
            "restarted" if attempt.afresh else "recovered",  # all ranks' processes are there; or all have made a new step
            cause=record.cause,
            failure_class=record.failure_class,
            ranks=record.ranks,
            spare=record.spare,
            resume_step=record.resume_step,
            steps_reexecuted=record.steps_reexecuted,
            total_s=record.total_s,
        )
    ask_for_checkpoint(state)
    finish_if_done(state, now_s=now_s)


def _lap(state: JobState, attempt: RecoveryAttempt, now_s: float) -> None:
    if state.story is not None:
        state.story.lap(PHASE_OF_STAGE[attempt.stage], now_s)
