"""How ready each node is for what may fail, after every event. Over JobState.

Planned swaps go on, and returns of excluded ranks. With `--spare-readiness hot` spares are kept hot, each for another seat, so
that so many spares cover so many seats: first those whose node has bad readings, then those whose node has failed before, then
the others in their order. With `--hot-standins` each member keeps hot stand-ins for its own ranks: first for those that failed.
"""

from collections.abc import Sequence

from deadpool.proto.config import Readiness
from deadpool.proto.messages import NO_STEP
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery import hot_nodes
from deadpool.supervisor.recovery.drain import swaps_go_on
from deadpool.supervisor.recovery.returning import returns_go_on


def readiness_read(state: JobState, node_id: str, standins: int) -> None:
    """So many stand-ins wait on the node: of a spare it is noted when they are enough, and when they are not any more."""
    node = state.roster.nodes[node_id]
    ready = standins >= state.config.nproc_per_node
    if node.role is not NodeRole.SPARE or node_id in state.recovery.hot or ready == bool(node.ready):
        return
    if ready:
        state.note("spare_ready", node=node_id, again=node.ready is not None)
    else:
        state.note("spare_not_ready", node=node_id, standins=standins)
    node.ready = ready


def settle(state: JobState, *, now_s: float) -> None:
    """What follows from the present state for spares and planned swaps; nothing, most of the time."""
    recovery, roster = state.recovery, state.roster
    keep_hot = state.config.spare_readiness is Readiness.HOT
    if not (keep_hot or recovery.hot or recovery.swaps or state.config.hot_standins or roster.excluded):
        return
    _end(state)
    for node_id in [each for each in recovery.swaps if each not in roster.seats]:
        del recovery.swaps[node_id]  # it has no ranks any more, for whatever reason
    wanted = {roster.seats.index(node_id) for node_id in recovery.swaps} | roster.excluded
    for node_id, hot in list(recovery.hot.items()):
        if roster.nodes[node_id].role is not NodeRole.SPARE or not (keep_hot or hot.seat in wanted):
            hot_nodes.let_go(state, node_id)
    swaps_go_on(state, now_s=now_s)
    returns_go_on(state, now_s=now_s)
    _end(state)  # a return may find that there are too few nodes
    for node_id in [each for each in recovery.hot_members if each not in roster.seats]:
        hot_nodes.let_go(state, node_id)
    if state.hooked and state.phase is Phase.RUN and state.progress.commit_step != NO_STEP:
        if keep_hot:
            _keep_hot(state, now_s=now_s)
        if state.config.hot_standins:
            _keep_members_hot(state, now_s=now_s)


def _end(state: JobState) -> None:
    """With the job all is over that was to get ready for it."""
    if state.phase is Phase.END:
        state.recovery.hot.clear()
        state.recovery.hot_members.clear()
        state.recovery.swaps.clear()


def _keep_hot(state: JobState, *, now_s: float) -> None:
    recovery, roster = state.recovery, state.roster
    spares = [node.node_id for node in roster.spares()]
    recovery.not_hot &= set(spares) | set(roster.seats)
    free = [node_id for node_id in spares if node_id not in recovery.hot.keys() | recovery.not_hot]
    if not (free or state.failures.unwell):
        return
    covered = {hot.seat for hot in recovery.hot.values()}
    for seat in sorted(set(range(len(roster.seats))) - covered, key=lambda seat: _likelihood(state, seat)):
        spare = _fittest(state, seat, free) if free else _less_needed(state, seat)
        if spare is None:
            return
        free = [each for each in free if each != spare]
        hot_nodes.begin(state, spare, seat, now_s=now_s)


def _fittest(state: JobState, seat: int, free: Sequence[str]) -> str:
    """Returns the spare that would be chosen for that seat (choose_spare)."""
    spreads, keepers = state.roster.spreads(seat, state.config), state.recovery.keepers.get(seat, ())
    return min(free, key=lambda each: (-spreads.get(each, 0), each not in keepers))


def _keep_members_hot(state: JobState, *, now_s: float) -> None:
    recovery, roster = state.recovery, state.roster
    if len(recovery.hot_members) + sum(node_id in roster.seats for node_id in recovery.not_hot) >= len(roster.seats):
        return
    for node in roster.members():
        if node.node_id not in recovery.hot_members.keys() | recovery.not_hot:
            ranks = [rank.rank for rank in roster.of_node(node.node_id)]
            ranks.sort(key=lambda rank: (-sum(rank in record.ranks for record in recovery.records), rank))
            hot_nodes.begin_on_member(state, node.node_id, ranks[: state.config.hot_standins], now_s=now_s)


def _less_needed(state: JobState, seat: int) -> str | None:
    """Returns a spare that is hot for a healthy node's seat while this seat's node is not well; none is taken from a swap."""
    if not _unwell(state, seat):
        return None
    for node_id, hot in state.recovery.hot.items():
        if not _unwell(state, hot.seat) and state.roster.seats[hot.seat] not in state.recovery.swaps:
            return node_id
    return None


def _likelihood(state: JobState, seat: int) -> tuple[bool, int, int]:
    """Sorts the seats: the likeliest to become vacant first."""
    holder = state.roster.seats[seat]
    failed = sum(record.node == holder for record in state.recovery.records)
    return not _unwell(state, seat), -failed, seat


def _unwell(state: JobState, seat: int) -> bool:
    return state.roster.seats[seat] in state.failures.unwell
