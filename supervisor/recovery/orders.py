"""What nodes are ordered while a generation is brought up, in whichever way. Over JobState."""

import itertools

from deadpool.proto.config import Readiness
from deadpool.proto.messages import NO_STEP, Assign, KillRanks, OpenStore, Placement, WarmUp
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import RecoveryAttempt, Stage
from deadpool.supervisor.recovery.keepers import joiners_places

KILL_TIMEOUT_S = 10.0  # SIGKILL to the exit seen: longer means that the node is broken


def open_store(state: JobState, attempt: RecoveryAttempt) -> None:
    """Asks a member for the generation's store: one that was in the job before, another one after each failure to open it."""
    survivors = (rank.node_id for rank in state.roster.ranks if rank.present and not rank.joining)
    failures = state.recovery.store_failures
    candidates = list(dict.fromkeys(survivors if failures else itertools.islice(survivors, 1)))
    candidates = candidates or [node.node_id for node in state.roster.members()]
    attempt.store_node = candidates[failures % len(candidates)]
    state.send(attempt.store_node, OpenStore(generation=attempt.generation))


def store_failed(state: JobState) -> None:
    """The member that was asked has not opened it: the next generation asks another one."""
    state.recovery.store_failures += 1


def kill(state: JobState, ranks: set[int], reason: str, *, now_s: float) -> None:
    """These ranks' processes are killed; each is replaced on its node when it was seen to exit."""
    attempt = state.recovery.attempt
    assert attempt is not None
    attempt.killing |= ranks
    attempt.kill_deadline_s = now_s + KILL_TIMEOUT_S
    for node in state.roster.members():
        numbers = tuple(rank.rank for rank in state.roster.of_node(node.node_id) if rank.rank in ranks)
        if numbers:
            state.note("ranks_killed", node=node.node_id, ranks=numbers, reason=reason)
            state.send(node.node_id, KillRanks(generation=state.generation, ranks=numbers, reason=reason))


def replace_outside(state: JobState, ranks: set[int], reason: str, *, now_s: float) -> None:
    """These ranks' processes did not fail, but their scripts cannot go back to the step from where they are: fresh ones can."""
    assert state.recovery.attempt is not None
    state.recovery.attempt.outside |= ranks
    if state.recovery.story is not None:
        state.recovery.story.replaced |= ranks
    if ranks:
        kill(state, ranks, reason, now_s=now_s)


def assign(state: JobState, node_id: str, *, now_s: float) -> None:
    """Orders a process for each of the node's ranks that has none."""
    seat = state.roster.seats.index(node_id)
    absent = {rank.rank: place for rank, place in joiners_places(state, seat, node_id) if not rank.present}
    if not absent:
        return
    attempt = state.recovery.attempt
    assert attempt is not None
    state.recovery.hot.pop(node_id, None)  # its hot stand-ins are the joiners now
    state.recovery.hot_members.pop(node_id, None)  # those for other ranks are counted again once all run
    for number in absent:
        state.roster.give_process(state.roster.ranks[number], generation=state.generation, now_s=now_s, joining=True)
        attempt.behind[Stage.QUIESCE].add(number)
        attempt.prepared.pop(number, None)
    state.send(node_id, assignment(state, tuple(absent.values())))
    warm_up(state, node_id)


def assignment(state: JobState, placements: tuple[Placement, ...], *, hot: bool = False) -> Assign:
    attempt, store = state.recovery.attempt, state.recovery.store
    hint_step = attempt.hint_step if attempt is not None else NO_STEP
    if hint_step == NO_STEP:
        hint_step = max(0, state.progress.commit_step - 1)
    return Assign(
        generation=state.generation,
        world_size=len(state.roster.ranks),
        placements=placements,
        hint_step=hint_step,
        master_node_count=len(state.roster.seats),
        restart_count=state.recovery.restarts,
        store_host=store.host if store is not None else "",
        store_port=store.port if store is not None else 0,
        hot=hot,
    )


def warm_up(state: JobState, node_id: str) -> None:
    """Has the node keep as many stand-ins as it should. Only a job with hooks has any."""
    role, config = state.roster.nodes[node_id].role, state.config
    if state.hooked and role in (NodeRole.MEMBER, NodeRole.SPARE):
        spares = {Readiness.COLD: 0, Readiness.WARM: config.nproc_per_node, Readiness.HOT: 2 * config.nproc_per_node}
        of_member = 1 + min(config.hot_standins, config.nproc_per_node)
        state.send(node_id, WarmUp(standins=of_member if role is NodeRole.MEMBER else spares[config.spare_readiness]))


def send_injections(state: JobState) -> None:
    for armed in state.injections.values():
        if not armed.spent:
            state.broadcast(armed.order())
