"""The processes on a node that is drained, from the order to drain until nobody needs them: what they hold goes to the vault.

`RecoveryState.drained` has all of them (rank -> node), `RecoveryAttempt.drained` those that a recovery still waits for.
Over JobState.
"""

from deadpool.proto.messages import KillRanks, RankPrepared
from deadpool.supervisor.model.membership import Node, NodeRole
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import Stage


def prepared(state: JobState, message: RankPrepared, node_id: str) -> None:
    """What this process held is in the vault of its node; the vault's report follows."""
    attempt = state.recovery.attempt
    if attempt is not None and attempt.stage in (Stage.SPARE, Stage.QUIESCE, Stage.PLAN):
        attempt.drained.discard(message.rank)
        state.roster.yields(state.roster.ranks[message.rank], message.yielded)
        attempt.owing.add(node_id)


def forget(state: JobState, ranks: set[int]) -> None:
    """These processes have ended, or are as good as: nobody waits for them."""
    state.recovery.drained = {rank: node for rank, node in state.recovery.drained.items() if rank not in ranks}
    if state.recovery.attempt is not None:
        state.recovery.attempt.drained -= ranks


def on_node(state: JobState, node_id: str) -> set[int]:
    return {rank for rank, node in state.recovery.drained.items() if node == node_id}


def end(state: JobState, node_id: str = "") -> None:
    """The processes that nobody needs any more are killed: on that node, or on all."""
    for each in sorted(set(state.recovery.drained.values())):
        if node_id in ("", each):
            ranks = on_node(state, each)
            reason = f"{each} is drained"
            state.send(each, KillRanks(generation=state.generation, ranks=tuple(sorted(ranks)), reason=reason))
            forget(state, ranks)


def take_back(state: JobState, node: Node) -> None:
    """A node that was drained may have ranks again."""
    end(state, node.node_id)
    node.role, node.drained = NodeRole.SPARE, False
    if state.recovery.draining == node.node_id:
        state.recovery.draining = ""
