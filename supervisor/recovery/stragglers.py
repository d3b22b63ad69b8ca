"""A rank is slower than the others by itself: it is named, and its node is drained where the job was asked to. Over JobState."""

from deadpool.supervisor.model.commands import Value
from deadpool.supervisor.model.events import StragglerJudged
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery.drain import drain


def straggler_judged(state: JobState, judged: StragglerJudged, now_s: float) -> None:
    rank = state.roster.ranks[judged.rank] if judged.rank < len(state.roster.ranks) else None
    if rank is None or judged.generation != state.generation or rank.node_id != judged.node or state.phase is Phase.END:
        return
    if not rank.present:  # excluded, or gone meanwhile
        return
    stragglers = state.failures.stragglers
    if judged.over:
        if stragglers.pop(judged.rank, None) is not None:
            state.note("straggler_over", rank=judged.rank, node=judged.node)
        return
    stragglers[judged.rank] = judged.own_s / judged.median_s if judged.median_s > 0 else 0.0
    own_s, median_s = round(judged.own_s, 4), round(judged.median_s, 4)
    swap: dict[str, Value] = {}
    if state.config.swap_stragglers:
        why_not = drain(state, state.roster.nodes[judged.node], f"rank {judged.rank} is slow", now_s)
        swap["swap"] = why_not or "its node is drained"
    state.note("straggler", rank=judged.rank, node=judged.node, own_s=own_s, median_s=median_s, **swap)
