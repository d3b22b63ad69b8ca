"""How well the job is kept: protection that is off, states that differ, checkpoints, hosts in trouble. Over JobState."""

from deadpool.proto.messages import (
    NO_STEP,
    CheckpointWritten,
    CopyConflict,
    HostTrouble,
    KillRanks,
    ProtectionChanged,
    StateDiffers,
    WriteCheckpoint,
)
from deadpool.supervisor.model.state import JobState, Phase, Unprotected
from deadpool.supervisor.recovery.plan import Sent, usable


def protection_changed(state: JobState, changed: ProtectionChanged) -> None:
    """A rank cannot protect its states, so that none is committed; or one is, by all ranks. Said once, whoever says it too."""
    if not changed.reason:
        if state.unprotected:
            state.note("protected_again", rank=changed.rank, step=changed.step)
        state.unprotected.clear()
        return
    known = changed.reason in {each.reason for each in state.unprotected.values() if each.generation == changed.generation}
    state.unprotected[changed.rank] = Unprotected(generation=changed.generation, step=changed.step, reason=changed.reason)
    if not known:
        state.note("unprotected", rank=changed.rank, since_step=changed.step, reason=changed.reason)


def unprotected(state: JobState) -> str:
    """Returns since when and why the state is not protected, "" when it is. Each generation says it anew, once it has tried."""
    present, commit_step = state.generation, state.commit_step
    now = {rank: each for rank, each in state.unprotected.items() if each.generation == present or each.step > commit_step}
    doubt = state.doubted
    if doubt is not None and usable(doubt.generation, doubt.step, state.lineage):
        return f"unprotected since step {doubt.step}: {doubt.reason}"
    if not now:
        return ""
    rank, first = min(now.items(), key=lambda entry: (entry[1].step, entry[0]))
    return f"unprotected since step {first.step}: rank {rank}: {first.reason}"


def state_differs(state: JobState, differs: StateDiffers) -> None:
    """A rank whose copy is outvoted gets a new process, and all go back to the last state that was the same everywhere.

    What was computed since may have come from wrong bytes, on every rank: it is a dead branch. Where no such state is known, or
    nobody can tell who is right, the ranks are named, and the job is said to be unprotected against it.
    """
    told = differs.generation, differs.step
    if told == state.differed or state.phase in (Phase.FINISH, Phase.END):
        return
    state.differed = told
    if differs.repair == "none":
        _doubt(state, differs)
        return
    _note_difference(state, differs)
    state.lineage.append(Sent(generation=state.generation + 1, resume_step=differs.good_step))
    for rank in differs.ranks:
        node_id = state.roster.ranks[rank].node_id
        if state.roster.ranks[rank].present:
            order = KillRanks(generation=state.generation, ranks=(rank,), reason="its state differs from its peers'")
            state.send(node_id, order)
            state.corrupted[rank] = f"held {differs.item} of step {differs.step} otherwise than its peers (silent corruption)"


def _doubt(state: JobState, differs: StateDiffers) -> None:
    """Said once for as long as the ranks and what they differ in are the same."""
    ranks = ", ".join(map(str, differs.ranks))
    reason = f"ranks {ranks} differ in {differs.item}, and nobody can tell who is right or since when"
    known = state.doubted
    if known is not None and known.reason == reason and usable(known.generation, known.step, state.lineage):
        return
    state.doubted = Unprotected(generation=differs.generation, step=differs.step, reason=reason)
    _note_difference(state, differs)
    state.note("unprotected", rank=differs.rank, since_step=differs.step, reason=reason)


def conflicts_told(state: JobState, conflicts: tuple[CopyConflict, ...]) -> None:
    """Replicas and peers' snapshots contradict each other, in whatever generation that is said: no plan counts on both again."""
    for each in conflicts:
        if each not in state.conflicts:
            state.conflicts.add(each)
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


def checkpoint_requested(state: JobState) -> None:
    """The request stays until a checkpoint is written: rank 0, which arranges it, may be lost meanwhile."""
    if not state.config.checkpoint_dir:
        state.note("checkpoint_failed", node="", step=state.commit_step, error="there is no --checkpoint-dir")
        return
    state.checkpoint_asked = True
    state.note("checkpoint_requested")
    ask_for_checkpoint(state)


def ask_for_checkpoint(state: JobState) -> None:
    if state.checkpoint_asked and state.phase is Phase.RUN:
        state.send(state.roster.ranks[0].node_id, WriteCheckpoint(generation=state.generation))


def checkpoint_written(state: JobState, node_id: str, written: CheckpointWritten) -> None:
    if written.error:
        state.note("checkpoint_failed", node=node_id, step=written.step, error=written.error)
        return
    if not written.seconds:  # it was there before
        if state.checkpoint_step == NO_STEP:
            state.checkpoint_step = written.step
            state.note("checkpoint_found", step=written.step, path=written.path)
        return
    state.checkpoint_step, state.checkpoint_asked = written.step, False
    state.note("checkpoint", step=written.step, path=written.path, seconds=round(written.seconds, 3))


def host_trouble(state: JobState, node_id: str, trouble: HostTrouble) -> None:
    node = state.roster.nodes[node_id]
    if trouble.text:
        node.troubles[trouble.kind] = trouble.text
        state.note("host_trouble", node=node_id, kind=trouble.kind, text=trouble.text)
    elif node.troubles.pop(trouble.kind, None):
        state.note("host_trouble_over", node=node_id, kind=trouble.kind)
