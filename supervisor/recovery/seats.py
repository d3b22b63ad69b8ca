"""Which node sits in which seat when a generation begins: spares take vacant ones; a job may go on with fewer seats.

Over JobState.
"""

from deadpool.proto.config import OnExhausted
from deadpool.supervisor.model.membership import Node, NodeRole, choose_members, choose_spare
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery import drained_ranks


def first_members(state: JobState) -> None:
    """Enough agents are there: the first ones take the seats."""
    for node_rank, node_id in enumerate(choose_members(state.roster.live(), state.config.nnodes)):
        state.roster.take_seat(node_rank, node_id)


def fit_seats(state: JobState) -> None:
    """A job with a range of nodes has as many seats as there are nodes for it; not a hooked one, whose ranks keep their state."""
    roster, config = state.roster, state.config
    present = len(roster.members()) + len(roster.spares())
    nnodes = max(config.fewest_nodes, min(config.nnodes, present))
    if not state.hooked and nnodes != len(roster.seats):
        roster.resize(nnodes)
        state.note("resized", nnodes=nnodes)


def fill_seats(state: JobState, reason: str, *, now_s: float) -> bool:
    """Gives each vacant seat a spare. Returns False when the job has ended for want of one; with `wait` seats stay vacant."""
    hot = {node_id: spare.seat for node_id, spare in state.recovery.hot.items()}

    def chosen(seat: int) -> tuple[str | None, str]:
        keepers, spreads = state.recovery.keepers.get(seat, ()), state.roster.spreads(seat, state.config)
        return choose_spare(state.roster.nodes, seat=seat, hot=hot, keepers=keepers, spreads=spreads)

    for node_rank in sorted(state.roster.vacancies(), key=lambda seat: (seat not in hot.values(), seat)):
        spare, why = chosen(node_rank)
        draining = state.roster.nodes.get(state.recovery.draining)
        if spare is None and draining is not None and draining.role is NodeRole.DRAINED:  # its ranks have nowhere else to go
            drained_ranks.take_back(state, draining)
            state.note("drain_undone", node=draining.node_id, reason=why)
            spare, why = chosen(node_rank)
        if spare is None and (faulty := _faulty_again(state)) is not None:
            faulty.role = NodeRole.SPARE
            state.note("kept_on_node", node=faulty.node_id, reason=f"{why}: it gets ranks again")
            spare, why = chosen(node_rank)
        if spare is not None:
            _seat(state, node_rank, spare, why)
        elif state.config.on_exhausted is OnExhausted.ABORT:
            state.end(1, f"{reason}; {why} (--on-exhausted abort)", now_s=now_s)
            return False
        else:  # nor is there one for the other seats, of which there may be thousands
            break
    return True


def _faulty_again(state: JobState) -> Node | None:
    """Returns a node that has given up its ranks for failing too often, and lives: it comes before waiting for nobody."""
    if state.config.on_exhausted is not OnExhausted.WAIT:
        return None
    faulty = (node for node in state.roster.nodes.values() if node.role is NodeRole.FAULTY and node.gave_up and node.live)
    return min(faulty, key=lambda node: node.index, default=None)


def _seat(state: JobState, node_rank: int, spare: str, why: str) -> None:
    state.roster.take_seat(node_rank, spare)
    hot = state.recovery.hot.get(spare)
    if hot is not None and hot.seat != node_rank:
        del state.recovery.hot[spare]  # its agent ends those stand-ins when it is given other ranks
    if state.recovery.story is not None:
        state.recovery.story.spares.append(spare)
        state.recovery.story.moved.update(rank.rank for rank in state.roster.of_seat(node_rank))
    state.note("spare_chosen", node=spare, seat=node_rank, reason=why)
