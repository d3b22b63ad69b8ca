"""Who keeps whose replicas in this generation, and who may have older ones. Over JobState."""

from collections.abc import Iterator

from deadpool.proto.messages import Placement
from deadpool.supervisor.model.membership import Rank
from deadpool.supervisor.model.state import JobState

_OLDER = 4  # nodes that may still have replicas of a seat's ranks: no recovery takes so many tries before it is given up


def replicas_placed(state: JobState, *, from_scratch: bool = False) -> None:
    """From here on replicas are kept where they are to be with the nodes that there are now."""
    recovery, roster = state.recovery, state.roster
    placing = roster.placing(state.config)
    if from_scratch:
        recovery.keepers_before.clear()
    else:
        recovery.keepers_before = {
            seat: tuple(dict.fromkeys((*kept_by, *recovery.keepers_before.get(seat, ()))))[:_OLDER]
            for seat, kept_by in recovery.keepers.items()
        }
    recovery.keepers = {seat: placing.holders[node] for seat, node in enumerate(roster.seats) if node is not None}
    recovery.holders = frozenset(holder for kept_by in recovery.keepers.values() for holder in kept_by)
    recovery.holders_lost = frozenset()
    recovery.spread = min(state.config.replicas, placing.spread) if placing.domains else 0


def joiners_places(state: JobState, seat: int, node_id: str) -> Iterator[tuple[Rank, Placement]]:
    """Yields the seat's ranks with their places for processes on that node which take them over, or are to be ready for that.

    Their holders are those that have replicas: what is to be kept where from the next commit on, the plan says.
    """
    recovery, roster = state.recovery, state.roster
    kept_by = dict.fromkeys((*recovery.keepers.get(seat, ()), *recovery.keepers_before.get(seat, ())))
    holders = tuple(roster.nodes[holder].endpoint for holder in kept_by if roster.nodes[holder].live)
    for local_rank, rank in enumerate(roster.of_seat(seat)):
        yield rank, Placement(rank=rank.rank, local_rank=local_rank, node_id=node_id, node_rank=seat, holders=holders)
