"""A node is wanted for something else: its ranks move to a spare, though nothing has failed. Over JobState.

First the spare gets hot for its seat, while all train on (hot_nodes.py); the drain waits for that as a planned swap. Then the
node's processes run to the boundary of their step like all others, so that their state of that step is in its vault, where their
successors get it; then they end. The node serves its vault on, gets no ranks, and keeps no replicas: it can be switched off once
the new generation has committed a step.
"""

from deadpool.proto.messages import NO_STEP
from deadpool.supervisor.model.commands import Answer
from deadpool.supervisor.model.events import DrainRequested
from deadpool.supervisor.model.hot import Swap
from deadpool.supervisor.model.membership import Node, NodeRole, choose_spare
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery import drained_ranks, hot_nodes, protocol
from deadpool.supervisor.recovery.planning import plan_if_ready


def drain_requested(state: JobState, request: DrainRequested, now_s: float) -> None:
    node, error = _find(state, request.node)
    if node is not None:
        error = _undo(state, node, now_s) if request.undo else drain(state, node, request.reason, now_s)
    state.outbox.append(Answer(cause=state.cause, event_id=request.event_id, error=error))


def _find(state: JobState, name: str) -> tuple[Node | None, str]:
    """Returns the live node of that name or launch index, else why there is none."""
    live = state.roster.live()
    for node in live:
        if node.node_id == name:
            return node, ""
    for node in live:
        if name.isdecimal() and node.index == int(name):
            return node, ""
    return None, f"there is no live node {name!r}: live ones are {', '.join(node.node_id for node in live) or 'none'}"


def drain(state: JobState, node: Node, reason: str, now_s: float) -> str:
    """Returns why the node cannot be drained, and then nothing has changed; "" when it is on its way."""
    if node.role is NodeRole.DRAINED or node.node_id in state.recovery.swaps:
        return ""
    seated = node.node_id in state.roster.seats
    moves = seated or (state.hooked and node.node_id in state.recovery.holders)  # ranks, or the replicas that it keeps
    if moves and (error := _obstacle(state, node, seated=seated)):
        return error
    if seated:
        state.recovery.swaps[node.node_id] = Swap(reason=reason)
    elif moves:
        protocol.recover(state, drained_ranks.move(state, node.node_id, reason, now_s=now_s), now_s=now_s)
    else:
        drained_ranks.leave(state, node.node_id, reason)
    return ""


def swaps_go_on(state: JobState, *, now_s: float) -> None:
    """Planned swaps whose spare is hot take place, one after the other; a spare is found for the others."""
    recovery = state.recovery
    for node_id in list(recovery.swaps):
        if state.phase is Phase.RUN:
            _go_on(state, node_id, now_s=now_s)


def _go_on(state: JobState, node_id: str, *, now_s: float) -> None:
    """The swap takes place once a spare is hot for the node's seat; one is chosen for that; or there is none, and it does not."""
    recovery, seat = state.recovery, state.roster.seats.index(node_id)
    swap = recovery.swaps[node_id]
    hot = next((hot for hot in recovery.hot.values() if hot.seat == seat), None)
    if hot is not None:
        if hot.ready and not _a_loop_begins(state):
            del recovery.swaps[node_id]
            protocol.recover(state, drained_ranks.move(state, node_id, swap.reason, now_s=now_s), now_s=now_s)
        return
    if state.progress.commit_step == NO_STEP and not state.protection.unprotected:
        return  # soon there is something from which a joiner learns what its rank has seen
    spare, why = _free_spare(state, swap, seat)
    if spare is not None:
        hot_nodes.begin(state, spare, seat, now_s=now_s)
    else:
        del recovery.swaps[node_id]
        state.note("drain_undone", node=node_id, reason=why)


def _a_loop_begins(state: JobState) -> bool:
    """Returns whether a later loop has no state of its own yet: only new processes could be before its first step again."""
    released_step = state.progress.released_step
    return released_step != NO_STEP and state.progress.commit_step <= released_step and not state.protection.unprotected


def _free_spare(state: JobState, swap: Swap, seat: int = -1) -> tuple[str | None, str]:
    """Returns (a spare that no other swap waits for, why), or (None, why there is none)."""
    recovery, roster = state.recovery, state.roster
    seats = {roster.seats.index(node_id) for node_id in recovery.swaps}
    hot = {node_id: spare.seat for node_id, spare in recovery.hot.items()}
    busy = swap.failed.keys() | {node_id for node_id, hot_seat in hot.items() if hot_seat in seats}
    free = {node_id: node for node_id, node in roster.nodes.items() if node_id not in busy}
    keepers, spreads = recovery.keepers.get(seat, ()), roster.spreads(seat, state.config)
    spare, why = choose_spare(free, hot=hot, keepers=keepers, spreads=spreads)
    reasons = [f"{node_id}: {reason}" for node_id, reason in swap.failed.items()]
    return spare, "; ".join([*reasons, why])


def _obstacle(state: JobState, node: Node, *, seated: bool) -> str:
    """Returns why what this node has cannot be moved now, "" when it can."""
    match state.phase:
        case Phase.ASSEMBLE | Phase.START:
            return f"{node.node_id} cannot be drained yet: the job has not begun to train"
        case Phase.RECOVER:
            return f"{node.node_id} cannot be drained now: the job recovers; ask again when it runs"
        case Phase.FINISH:
            return f"{node.node_id} is not drained: the ranks are out of their step loops; ask again if they begin another one"
        case Phase.END:
            return f"{node.node_id} is not drained: the job is ending"
        case Phase.RUN:
            pass
    if not state.hooked:
        return (
            f"{node.node_id} cannot be drained: the script has no deadpool.join(), its ranks could only be started from scratch"
        )
    spare, why = _free_spare(state, Swap(reason=""))
    return f"{node.node_id} is not drained: {why}" if seated and spare is None else ""


def _undo(state: JobState, node: Node, now_s: float) -> str:
    if state.recovery.swaps.pop(node.node_id, None) is not None:  # nothing has moved yet
        state.note("drain_undone", node=node.node_id, reason="asked for")
        return ""
    if node.role is not NodeRole.DRAINED:
        return f"{node.node_id} is not drained: it is a {node.role}"
    drained_ranks.take_back(state, node)
    state.note("drain_undone", node=node.node_id, reason="asked for")
    protocol.node_available(state, node.node_id, now_s=now_s)
    if state.recovery.attempt is not None:  # its old processes are awaited no more
        plan_if_ready(state, state.recovery.attempt, now_s=now_s)
    return ""
