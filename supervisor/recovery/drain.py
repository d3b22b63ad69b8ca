"""A node is wanted for something else: its ranks move to a spare, though nothing has failed. Over JobState.

Its processes run to the boundary of their step like all others, so that their state of that step is in its vault, where their
successors get it; then they end. The node serves its vault on, gets no ranks, and keeps no replicas: it can be switched off once
the new generation has committed a step.
"""

from deadpool.proto.messages import WarmUp
from deadpool.supervisor.model.commands import Answer
from deadpool.supervisor.model.events import DrainRequested
from deadpool.supervisor.model.failure import Failure, FailureClass
from deadpool.supervisor.model.membership import Node, NodeRole, choose_spare
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery import drained_ranks, protocol
from deadpool.supervisor.recovery.planning import plan_if_ready


def drain_requested(state: JobState, request: DrainRequested, now_s: float) -> None:
    node, error = _find(state, request.node)
    if node is not None:
        error = _undo(state, node, now_s) if request.undo else _drain(state, node, request.reason, now_s)
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


def _drain(state: JobState, node: Node, reason: str, now_s: float) -> str:
    """Returns why the node cannot be drained, and then nothing has changed; "" when it is on its way."""
    if node.role is NodeRole.DRAINED:
        return ""
    seated = node.node_id in state.roster.seats
    moves = seated or (state.hooked and node.node_id in state.recovery.holders)  # ranks, or the replicas that it keeps
    if moves and (error := _obstacle(state, node, seated=seated)):
        return error
    ranks = {rank.rank: node.node_id for rank in state.roster.of_node(node.node_id) if rank.present}
    state.roster.vacate(node.node_id, NodeRole.DRAINED)
    state.note("drain", node=node.node_id, reason=reason, ranks=tuple(ranks))
    state.send(node.node_id, WarmUp(standins=0))
    if moves:
        state.recovery.drained |= ranks
        state.recovery.draining = node.node_id
        cause = f"{node.node_id} is drained" + (f" ({reason})" if reason else "")
        failure = Failure(cause=cause, failure_class=FailureClass.PLANNED, node=node.node_id, ranks=tuple(ranks), at_s=now_s)
        protocol.recover(state, failure, now_s=now_s)
    return ""


def _obstacle(state: JobState, node: Node, *, seated: bool) -> str:
    """Returns why what this node has cannot be moved now, "" when it can."""
    match state.phase:
        case Phase.ASSEMBLE | Phase.START:
            return f"{node.node_id} cannot be drained yet: the job has not begun to train"
        case Phase.RECOVER:
            return f"{node.node_id} cannot be drained now: the job recovers; ask again when it runs"
        case Phase.FINISH | Phase.END:
            return f"{node.node_id} is not drained: the job is ending"
        case Phase.RUN:
            pass
    if not state.hooked:
        return (
            f"{node.node_id} cannot be drained: the script has no deadpool.join(), its ranks could only be started from scratch"
        )
    spare, why = choose_spare(state.roster.nodes)
    return f"{node.node_id} is not drained: {why}" if seated and spare is None else ""


def _undo(state: JobState, node: Node, now_s: float) -> str:
    if node.role is not NodeRole.DRAINED:
        return f"{node.node_id} is not drained: it is a {node.role}"
    drained_ranks.take_back(state, node)
    state.note("drain_undone", node=node.node_id, reason="asked for")
    protocol.node_available(state, node.node_id, now_s=now_s)
    if state.recovery.attempt is not None:  # its old processes are awaited no more
        plan_if_ready(state, state.recovery.attempt, now_s=now_s)
    return ""
