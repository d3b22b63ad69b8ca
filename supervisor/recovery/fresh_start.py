"""All ranks are started from scratch, in a generation of their own: the store is opened first, then they start. Over JobState."""

from deadpool.proto.messages import NO_STEP, KillRanks, StartRanks, StoreOpened
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import RecoveryAttempt, Stage
from deadpool.supervisor.recovery import drained_ranks
from deadpool.supervisor.recovery.keepers import replicas_placed
from deadpool.supervisor.recovery.orders import open_store, send_injections
from deadpool.supervisor.recovery.running import lap, runs
from deadpool.supervisor.recovery.seats import fill_seats, first_members, fit_seats


def start_job(state: JobState, *, now_s: float) -> None:
    first_members(state)
    start_over(state, "the job starts", now_s=now_s)


def start_over(state: JobState, reason: str, *, now_s: float) -> None:
    """A new generation from nothing: every rank gets a new process once the store is open."""
    state.roster.include_all()
    fit_seats(state)
    if not fill_seats(state, reason, now_s=now_s):
        return
    generation = state.next_generation()
    _forget_states(state)
    attempt = RecoveryAttempt(generation=generation, from_scratch=True, stage=Stage.STORE, began_s=now_s)
    state.recovery.attempt = attempt
    for rank in state.roster.ranks:
        state.roster.retire(rank)
        rank.since = generation
        rank.yielded, rank.yielded_known = NO_STEP, False
    drained_ranks.end(state)
    members = tuple(node.node_id for node in state.roster.members())
    state.note("generation", reason=reason, from_scratch=True, members=members)
    if state.roster.vacancies():
        _wait_for_node(state, attempt, now_s=now_s)
        return
    state.move(Phase.START)
    open_store(state, attempt)


def _forget_states(state: JobState) -> None:
    """What the vaults hold is of a dead branch now; to be back at the newest checkpoint is no progress."""
    recovery = state.recovery
    recovery.branch(generation=state.generation, resume_step=NO_STEP)
    if recovery.another_since_step >= state.protection.checkpoint_step:
        recovery.another_since_step = NO_STEP
    recovery.hot_members.clear()  # they end with the ranks
    state.progress.gone_back(NO_STEP)
    recovery.fruitful_step = min(recovery.fruitful_step, max(0, state.protection.checkpoint_step))


def _wait_for_node(state: JobState, attempt: RecoveryAttempt, *, now_s: float) -> None:
    state.move(Phase.RECOVER)
    attempt.enter(Stage.SPARE, now_s)
    state.note("waiting_for_node", seats=tuple(state.roster.vacancies()), ranks=state.roster.without_node())
    for node in state.roster.members():
        ranks = tuple(rank.rank for rank in state.roster.of_node(node.node_id))
        state.send(node.node_id, KillRanks(generation=state.generation, ranks=ranks, reason="the job waits for a node"))


def start_ranks(state: JobState, attempt: RecoveryAttempt, opened: StoreOpened, *, now_s: float) -> None:
    """The store is open."""
    config, roster = state.config, state.roster
    lap(state, attempt, now_s)
    attempt.enter(Stage.BEGIN, now_s)
    for rank in roster.ranks:
        roster.give_process(rank, generation=state.generation, now_s=now_s, joining=False)
    all_placements = roster.all_placements(config)
    replicas_placed(state, from_scratch=True)
    for node_id, placements in all_placements:
        order = StartRanks(
            generation=state.generation,
            world_size=len(roster.ranks),
            placements=placements,
            store_host=opened.host,
            store_port=opened.port,
            master_node_count=len(roster.seats),
            restart_count=state.recovery.restarts,
        )
        state.send(node_id, order)
    send_injections(state)


def ranks_begun(state: JobState, *, now_s: float) -> None:
    """The ranks' processes are there: a heartbeat has named one, or one has joined."""
    attempt, story = state.recovery.attempt, state.recovery.story
    if attempt is None or attempt.stage is not Stage.BEGIN:
        return
    if story is not None:
        step = max(0, state.protection.checkpoint_step) if state.hooked else NO_STEP  # else only the script knows
        story.goes_back(step, newest_step=step)
    runs(state, attempt, now_s=now_s, kept=False)


def grow(state: JobState, node_id: str, *, now_s: float) -> bool:
    """Restarts the ranks of a job that runs with fewer nodes than it may, now that one has come. Returns whether it did."""
    room = len(state.roster.seats) < state.config.nnodes
    if state.hooked or not room or state.phase not in (Phase.START, Phase.RUN) or any(rank.done for rank in state.roster.ranks):
        return False
    start_over(state, f"{node_id} has come", now_s=now_s)
    return True
