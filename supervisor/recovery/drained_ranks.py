"""The processes on a node that is drained, from the order to drain until nobody needs them: what they hold goes to the vault.

`RecoveryState.drained` has all of them (rank -> node), `RecoveryAttempt.drained` those that a recovery still waits for.
Over JobState.
"""

from deadpool.proto.messages import KillRanks, RankExited, RankPrepared, WarmUp
from deadpool.supervisor.model.failure import Failure, FailureClass
from deadpool.supervisor.model.membership import Node, NodeRole
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import Stage


def leave(state: JobState, node_id: str, reason: str) -> tuple[int, ...]:
    """The node gets no ranks any more. Returns those that it had, whose processes go on to their boundary."""
    ranks = {rank.rank: node_id for rank in state.roster.of_node(node_id) if rank.present}
    state.roster.vacate(node_id, NodeRole.DRAINED)
    state.note("drain", node=node_id, reason=reason, ranks=tuple(ranks))
    state.send(node_id, WarmUp(standins=0))
    state.recovery.drained |= ranks
    return tuple(ranks)


def move(state: JobState, node_id: str, reason: str, *, now_s: float) -> Failure:
    """The node's ranks, and the replicas that it keeps, are to be elsewhere in the next generation. Returns that as a failure."""
    ranks = tuple(rank.rank for rank in state.roster.of_node(node_id))
    leave(state, node_id, reason)
    state.recovery.draining = node_id
    cause = f"{node_id} is drained" + (f" ({reason})" if reason else "")
    return Failure(cause=cause, failure_class=FailureClass.PLANNED, node=node_id, ranks=ranks, at_s=now_s)


def move_with(state: JobState, *, now_s: float) -> Failure | None:
    """A generation begins for another reason: a planned swap whose spare is hot takes place with it, or one that must.

    It must where a rank on the node has failed: its joiner is there already, as a hot stand-in, or has come some of the way.
    """
    recovery, roster = state.recovery, state.roster
    seats = {hot.seat: hot for hot in recovery.hot.values()}
    for node_id, swap in recovery.swaps.items():
        hot = seats.get(roster.seats.index(node_id)) if node_id in roster.seats and not recovery.draining else None
        if hot is not None and (hot.ready or not all(rank.present for rank in roster.of_node(node_id))):
            del recovery.swaps[node_id]
            return move(state, node_id, swap.reason, now_s=now_s)
    return None


def prepared(state: JobState, message: RankPrepared, node_id: str) -> None:
    """What this process held is in the vault of its node; the vault's report follows."""
    attempt = state.recovery.attempt
    if attempt is not None and attempt.stage in (Stage.SPARE, Stage.QUIESCE, Stage.PLAN):
        attempt.drained.discard(message.rank)
        state.roster.yields(state.roster.ranks[message.rank], message.yielded)
        attempt.owing.add(node_id)


def ended(state: JobState, exited: RankExited) -> None:
    """This process has ended, and has left behind how far its script was."""
    state.progress.commit_known(exited.commit_step)
    state.roster.yields(state.roster.ranks[exited.rank], exited.yielded)
    forget(state, {exited.rank})


def forget(state: JobState, ranks: set[int]) -> None:
    """These processes have ended, or are as good as: nobody waits for them."""
    state.recovery.drained = {rank: node for rank, node in state.recovery.drained.items() if rank not in ranks}
    if state.recovery.attempt is not None:
        state.recovery.attempt.drained -= ranks


def on_node(state: JobState, node_id: str) -> set[int]:
    return {rank for rank, node in state.recovery.drained.items() if node == node_id}


def end(state: JobState) -> None:
    """Nobody needs these processes any more: they are killed."""
    for each in sorted(set(state.recovery.drained.values())):
        _kill(state, each)
        forget(state, on_node(state, each))


def _kill(state: JobState, node_id: str) -> None:
    ranks = tuple(sorted(on_node(state, node_id)))
    if ranks:
        state.send(node_id, KillRanks(generation=state.generation, ranks=ranks, reason=f"{node_id} is drained"))


def take_back(state: JobState, node: Node) -> None:
    """A node that was drained may have ranks again. Its processes are killed; what they leave behind is still waited for."""
    _kill(state, node.node_id)
    node.role, node.drained = NodeRole.SPARE, False
    if state.recovery.draining == node.node_id:
        state.recovery.draining = ""
