"""Copies that are bad, contradict each other, or differ where they should be the same. Over JobState."""

from deadpool.proto.messages import BadCopy, CopyConflict, KillRanks, StateDiffers
from deadpool.supervisor.model.lineage import usable
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState, Unprotected


def state_differs(state: JobState, differs: StateDiffers) -> None:
    """A rank whose copy is outvoted gets a new process, and all go back to the last state that was the same everywhere.

    What was computed since may have come from wrong bytes, on every rank: it is a dead branch. Where no such state is known, or
    nobody can tell who is right, the ranks are named, and the job is said to be unprotected against it.
    """
    reported = differs.generation, differs.step
    if reported == state.protection.differed or state.phase in (Phase.FINISH, Phase.END):
        return
    state.protection.differed = reported
    if differs.repair == "none":
        _doubt(state, differs)
        return
    _note_difference(state, differs)
    state.recovery.branch(generation=state.generation + 1, resume_step=differs.good_step)
    for rank in differs.ranks:
        node_id = state.roster.ranks[rank].node_id
        if state.roster.ranks[rank].present:
            order = KillRanks(generation=state.generation, ranks=(rank,), reason="its state differs from its peers'")
            state.send(node_id, order)
            state.protection.corrupted[rank] = (
                f"held {differs.item} of step {differs.step} otherwise than its peers (silent corruption)"
            )


def _doubt(state: JobState, differs: StateDiffers) -> None:
    """Noted once for as long as the ranks and what they differ in are the same."""
    ranks = ", ".join(map(str, differs.ranks))
    reason = f"ranks {ranks} differ in {differs.item}, and nobody can tell who is right or since when"
    known = state.protection.doubted
    if known is not None and known.reason == reason and usable(known.generation, known.step, state.recovery.lineage):
        return
    state.protection.doubted = Unprotected(generation=differs.generation, step=differs.step, reason=reason)
    _note_difference(state, differs)
    state.note("unprotected", rank=differs.rank, since_step=differs.step, reason=reason)


def conflicts_reported(state: JobState, conflicts: tuple[CopyConflict, ...]) -> None:
    """Replicas and peers' snapshots contradict each other, whatever generation reports it: no plan counts on both again."""
    for each in conflicts:
        if each not in state.protection.conflicts:
            state.protection.conflicts.add(each)
            state.note("copies_contradict", rank=each.rank, peer=each.peer, step=each.step)


def _note_difference(state: JobState, differs: StateDiffers) -> None:
    state.note(
        "state_differs",
        step=differs.step,
        ranks=differs.ranks,
        item=differs.item,
        repair=differs.repair,
        good_step=differs.good_step,
    )


def bad_copies_reported(state: JobState, copies: tuple[BadCopy, ...]) -> None:
    """Their vaults have made them unusable: the next reports do not name them."""
    for copy in copies:
        if copy not in state.protection.bad_copies:
            state.protection.bad_copies.add(copy)
            state.note("bad_copy", node=copy.node_id, kind=copy.kind.value, rank=copy.rank, step=copy.step)


def corrupted_ended(state: JobState, rank: int) -> None:
    """The process that held wrong bytes has ended."""
    state.protection.corrupted.pop(rank, None)
