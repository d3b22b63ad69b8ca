"""Spares get ready for a seat while another node holds it: their stand-ins construct, rehearse and wait hot. Over JobState.

When the seat becomes vacant such a spare takes it before any other, and its stand-ins are the joiners, however far they are.
"""

from dataclasses import replace

from deadpool.proto.messages import RankExited, RankJoined, RankPrepared
from deadpool.supervisor.model.hot import HotSpare
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery.orders import assignment

SpareMessage = RankJoined | RankPrepared | RankExited


def begin(state: JobState, node_id: str, seat: int, *, now_s: float) -> None:
    """Orders the spare's stand-ins to get hot for that seat; those that are hot for another one end."""
    holder = state.roster.seats[seat]
    assert holder is not None
    placements = tuple(replace(each, node_id=node_id) for each in state.roster.placements(holder, state.config.replicas))
    ranks = tuple(placement.rank for placement in placements)
    state.recovery.hot[node_id] = HotSpare(seat=seat, ranks=ranks, generation=state.generation, began_s=now_s)
    state.note("gets_hot", node=node_id, ranks=ranks)
    state.send(node_id, assignment(state, placements, hot=True))


def let_go(state: JobState, node_id: str) -> None:
    """Its stand-ins are hot for nothing any more."""
    del state.recovery.hot[node_id]
    if state.roster.nodes[node_id].live and node_id not in state.roster.seats:
        state.send(node_id, assignment(state, (), hot=True))


def heard(state: JobState, node_id: str, message: SpareMessage, *, now_s: float) -> None:
    """One of the spare's stand-ins has come a step further, or has ended."""
    hot = state.recovery.hot[node_id]
    if message.rank not in hot.ranks:
        return
    match message:
        case RankJoined():
            hot.joined_s[message.rank] = now_s
        case RankPrepared():
            _rehearsed(state, node_id, hot, message.rank, now_s)
        case RankExited() if message.generation >= hot.generation:
            how = f"signal {message.signal}" if message.signal else f"exit code {message.exit_code}"
            last = (message.error or message.log_tail).strip().rpartition("\n")[2].strip()
            failed(state, node_id, f"rank {message.rank} ended there with {how}" + (f": {last}" if last else ""))
        case RankExited():
            pass


def _rehearsed(state: JobState, node_id: str, hot: HotSpare, rank: int, now_s: float) -> None:
    joined_s = hot.joined_s.pop(rank, None)
    if joined_s is not None:
        state.build_took(rank, now_s - joined_s)
    if rank not in hot.rehearsed:
        hot.rehearsed.add(rank)
        if hot.ready:
            state.note("is_hot", node=node_id, ranks=hot.ranks, seconds=round(now_s - hot.began_s, 3))


def failed(state: JobState, node_id: str, reason: str) -> None:
    """The spare cannot get hot for that seat. It stays a spare: who takes a seat otherwise may succeed where others train."""
    hot = state.recovery.hot[node_id]
    state.note("not_hot", node=node_id, ranks=hot.ranks, reason=reason)
    swap = state.recovery.swaps.get(state.roster.seats[hot.seat] or "")
    if swap is not None:
        swap.failed[node_id] = reason
    state.recovery.not_hot.add(node_id)
    let_go(state, node_id)
