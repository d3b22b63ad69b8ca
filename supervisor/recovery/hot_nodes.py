"""Stand-ins get ready for ranks that others play: they construct, rehearse and wait hot. Over JobState.

A spare's are for a seat that another node holds: when it becomes vacant such a spare takes it before any other; or for one that
is excluded. A member's are for ranks of its own (`--hot-standins`): for a process that is lost. Either way they are the joiners
then, however far they are.
"""

from collections.abc import Collection

from deadpool.proto.messages import Placement, RankExited, RankJoined, RankPrepared
from deadpool.supervisor.model.hot import HotNode
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery.keepers import joiners_places
from deadpool.supervisor.recovery.orders import assignment

FromStandin = RankJoined | RankPrepared | RankExited


def begin(state: JobState, node_id: str, seat: int, *, now_s: float) -> None:
    """Orders the spare's stand-ins to get hot for that seat; those that are hot for another one end."""
    placements = tuple(place for _, place in joiners_places(state, seat, node_id))
    state.recovery.hot[node_id] = _ordered(state, node_id, seat, placements, now_s=now_s)


def begin_on_member(state: JobState, node_id: str, ranks: Collection[int], *, now_s: float) -> None:
    """Orders hot stand-ins for these ranks of the node's own; those that it has already stay."""
    seat = state.roster.seats.index(node_id)
    placements = tuple(place for rank, place in joiners_places(state, seat, node_id) if rank.rank in ranks)
    state.recovery.hot_members[node_id] = _ordered(state, node_id, seat, placements, now_s=now_s)


def _ordered(state: JobState, node_id: str, seat: int, placements: tuple[Placement, ...], *, now_s: float) -> HotNode:
    ranks = tuple(placement.rank for placement in placements)
    state.note("gets_hot", node=node_id, ranks=ranks)
    state.send(node_id, assignment(state, placements, hot=True))
    return HotNode(seat=seat, ranks=ranks, generation=state.generation, began_s=now_s)


def hot_of(state: JobState, node_id: str) -> HotNode | None:
    return state.recovery.hot.get(node_id) or state.recovery.hot_members.get(node_id)


def let_go(state: JobState, node_id: str) -> None:
    """Its stand-ins are hot for nothing any more. A spare that has taken a seat ends those for another one by itself."""
    of_member = state.recovery.hot_members.pop(node_id, None)
    state.recovery.hot.pop(node_id, None)
    if state.roster.nodes[node_id].live and (of_member is not None or node_id not in state.roster.seats):
        state.send(node_id, assignment(state, (), hot=True))


def heard(state: JobState, node_id: str, message: FromStandin, *, now_s: float) -> None:
    """One of the node's hot stand-ins has come a step further, or has ended."""
    hot = hot_of(state, node_id)
    if hot is None or message.rank not in hot.ranks:
        return
    match message:
        case RankJoined():
            hot.joined_s[message.rank] = now_s
        case RankPrepared():
            _rehearsed(state, node_id, hot, message, now_s)
        case RankExited() if message.generation >= hot.generation:
            how = f"signal {message.signal}" if message.signal else f"exit code {message.exit_code}"
            last = (message.error or message.log_tail).strip().rpartition("\n")[2].strip()
            failed(state, node_id, f"rank {message.rank} ended there with {how}" + (f": {last}" if last else ""))
        case RankExited():
            pass


def _rehearsed(state: JobState, node_id: str, hot: HotNode, prepared: RankPrepared, now_s: float) -> None:
    rank = prepared.rank
    joined_s = hot.joined_s.pop(rank, None)
    if joined_s is not None:
        state.build_took(rank, now_s - joined_s)
    if rank not in hot.rehearsed:
        hot.rehearsed[rank] = prepared.device_bytes
        if hot.ready:
            state.note("is_hot", node=node_id, ranks=hot.ranks, seconds=round(now_s - hot.began_s, 3))


def failed(state: JobState, node_id: str, reason: str) -> None:
    """The node cannot get hot for these ranks. Nothing else changes: who takes them otherwise may succeed where others train."""
    hot = hot_of(state, node_id)
    assert hot is not None
    state.note("not_hot", node=node_id, ranks=hot.ranks, reason=reason)
    swap = state.recovery.swaps.get(state.roster.seats[hot.seat] or "")
    if swap is not None and node_id in state.recovery.hot:
        swap.failed[node_id] = reason
    state.recovery.not_hot.add(node_id)
    let_go(state, node_id)
