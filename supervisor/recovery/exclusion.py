"""The ranks of a lost node are excluded (--on-loss exclude): the others go on without them, until a node comes. Over JobState.

Only where every rank holds the same, as with DDP: then nothing is lost with them but their share of each batch, and whoever
returns finds its state on any other rank. What follows is another training than the unbroken one, and is called so.
The ranks of the first seat are not excluded: rank 0 is the one that broadcasts, in DDP itself and in most scripts, and what a
script does `if rank == 0` (its logs, its own checkpoints, its decisions) would be done by nobody, without anybody noticing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from deadpool.proto.config import OnLoss
from deadpool.proto.messages import NO_STEP, Slot
from deadpool.proto.vault.holdings import ranks_text
from deadpool.supervisor.model.lineage import Sent, usable
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import RecoveryAttempt, Stage
from deadpool.supervisor.recovery.orders import assign
from deadpool.supervisor.recovery.seats import fill_seats

FIRST_SEAT = 0
_NOT_RANK_0 = "rank 0 is among them: what it broadcasts, logs and saves would be nobody's"


def exclude_lost(state: JobState) -> None:
    """A generation begins from committed states: vacant seats of lost nodes are excluded. Whether that may be is asked later."""
    roster, recovery = state.roster, state.recovery
    if state.config.on_loss is not OnLoss.EXCLUDE or not state.hooked or not roster.members():
        return
    if recovery.needs_all or state.progress.commit_step == NO_STEP:
        return
    for seat in roster.vacancies():
        lost = roster.nodes[roster.of_seat(seat)[0].node_id].role in (NodeRole.LOST, NodeRole.FAULTY)
        if lost and seat == FIRST_SEAT:
            ranks = tuple(rank.rank for rank in roster.of_seat(seat))
            state.note("not_excluded", ranks=ranks, reason=_NOT_RANK_0)
        elif lost and seat not in recovery.needed:
            roster.exclude(seat)


def include_ready(state: JobState) -> None:
    """A generation begins: excluded seats return for which a spare is hot; all of them, where the job cannot go on without."""
    roster, recovery = state.roster, state.recovery
    ready = {hot.seat for hot in recovery.hot.values() if hot.ready}
    for seat in sorted(roster.excluded):
        if recovery.needs_all or seat in ready:
            roster.excluded.discard(seat)


def all_are_needed(state: JobState, ranks: tuple[int, ...], reason: str) -> None:
    """The script cannot do without these ranks, and so without none: they return with the generation that begins now."""
    state.recovery.needs_all = True
    state.note("not_excluded", ranks=ranks, reason=reason)


def cannot_exclude(state: JobState, attempt: RecoveryAttempt, *, now_s: float) -> bool:
    """Everybody is prepared. Returns whether ranks that are to be excluded cannot be: nodes are wanted for them after all."""
    roster = state.roster
    new = [seat for seat in sorted(roster.excluded) if not all(rank.stale for rank in roster.of_seat(seat))]
    if not new:
        return False
    ranks = tuple(rank.rank for seat in new for rank in roster.of_seat(seat))
    why = obstacle(
        excluded=ranks,
        ranks=[rank.rank for rank in roster.ranks if not rank.stale],
        vaults=attempt.reports,
        lineage=state.recovery.lineage,
    )
    if not why:
        return False
    state.note("not_excluded", ranks=ranks, reason=why)
    roster.excluded -= set(new)
    state.recovery.needed |= set(new)
    for behind in attempt.behind.values():
        behind |= set(ranks)
    if not fill_seats(state, why, now_s=now_s):
        return True
    waits = roster.vacancies()
    attempt.enter(Stage.SPARE if waits else Stage.QUIESCE, now_s)
    if waits:
        state.note("waiting_for_node", seats=tuple(waits), ranks=roster.without_node())
    for node_id in roster.short_of_processes():
        assign(state, node_id, now_s=now_s)
    return True


def obstacle(
    *, excluded: Collection[int], ranks: Collection[int], vaults: Mapping[str, Sequence[Slot]], lineage: Sequence[Sent]
) -> str:
    """Returns why a job cannot go on without the excluded ranks, "" when it can: every rank holds the same as all others.

    `ranks`: those that have played until now, the excluded ones among them. Their newest states in `vaults` say what they hold.
    """
    found: dict[int, list[Slot]] = {rank: [] for rank in ranks}
    for slot in (slot for slots in vaults.values() for slot in slots):
        if slot.rank in found and usable(slot.generation, slot.step, lineage):
            found[slot.rank].append(slot)
    if unknown := [rank for rank, slots in sorted(found.items()) if not slots]:
        return f"no memory says what rank {ranks_text(unknown)} holds"
    for rank in [*sorted(excluded), *sorted(set(ranks) - set(excluded))]:
        newest_step = max(slot.step for slot in found[rank])
        newest = [slot for slot in found[rank] if slot.step == newest_step]
        if any(slot.unique for slot in newest):
            return f"rank {rank} holds what no rank on another node holds"
        if not _all_hold(newest, set(ranks) - {rank}):
            return f"not all other ranks hold what rank {rank} holds"
    return ""


def _all_hold(slots: Iterable[Slot], others: set[int]) -> bool:
    return all(slot.peer_sets and all(set(each.ranks) == others for each in slot.peer_sets) for slot in slots)
