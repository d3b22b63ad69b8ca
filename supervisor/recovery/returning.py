"""A node has come while ranks are excluded: it gets hot for their seat beside the job, and they return at a boundary.

Over JobState.
"""

from deadpool.proto.messages import NO_STEP
from deadpool.proto.vault.holdings import ranks_text
from deadpool.supervisor.model.failure import Failure, FailureClass
from deadpool.supervisor.model.membership import choose_spare
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery import hot_nodes, protocol


def returns_go_on(state: JobState, *, now_s: float) -> None:
    """Excluded seats whose spare is hot return, all together; a spare is found for the others."""
    recovery, roster = state.recovery, state.roster
    progress = state.progress
    if state.phase is not Phase.RUN or progress.commit_step == NO_STEP or progress.commit_step <= progress.released_step:
        return  # at the beginning of a loop nobody can go back to its first step
    ready = {node_id: hot.seat for node_id, hot in recovery.hot.items() if hot.ready and hot.seat in roster.excluded}
    if ready:
        ranks = tuple(rank.rank for seat in sorted(ready.values()) for rank in roster.of_seat(seat))
        cause = f"rank {ranks_text(ranks)} returns, on {', '.join(sorted(ready))}"
        planned = Failure(cause=cause, failure_class=FailureClass.PLANNED, node=min(ready), ranks=ranks, at_s=now_s)
        protocol.recover(state, planned, now_s=now_s)
        return
    recovery.not_hot &= {node.node_id for node in roster.spares()} | set(filter(None, roster.seats))
    for seat in sorted(roster.excluded - {hot.seat for hot in recovery.hot.values()}):
        busy = recovery.hot.keys() | recovery.not_hot
        spare, _ = choose_spare({node_id: node for node_id, node in roster.nodes.items() if node_id not in busy})
        if spare is None:
            return
        hot_nodes.begin(state, spare, seat, now_s=now_s)
