"""How well the job is kept: protection that is off, states that differ, checkpoints, hosts in trouble. Over JobState."""

from deadpool.proto.messages import NO_STEP, CheckpointWritten, HostTrouble, KillRanks, ProtectionChanged, StateDiffers
from deadpool.supervisor.state import JobState, Phase, Unprotected


def protection_changed(state: JobState, changed: ProtectionChanged) -> None:
    if not changed.reason:
        if state.unprotected.pop(changed.rank, None) is not None:
            state.note("protected_again", rank=changed.rank, step=changed.step)
        return
    state.unprotected[changed.rank] = Unprotected(generation=changed.generation, step=changed.step, reason=changed.reason)
    state.note("unprotected", rank=changed.rank, since_step=changed.step, reason=changed.reason)


def unprotected(state: JobState) -> str:
    """Returns since when and why the state is not protected, "" when it is. Each generation says it anew."""
    now = {rank: each for rank, each in state.unprotected.items() if each.generation == state.generation}
    if not now:
        return ""
    rank, first = min(now.items(), key=lambda entry: (entry[1].step, entry[0]))
    return f"unprotected since step {first.step}: rank {rank}: {first.reason}"


def state_differs(state: JobState, differs: StateDiffers) -> None:
    """A rank whose copy is outvoted, and was discarded, gets a new process: it comes back with the others at the step before."""
    state.note("state_differs", step=differs.step, ranks=differs.ranks, item=differs.item, repair=differs.repair)
    if differs.repair == "none" or state.phase is not Phase.RUN:
        return
    for rank in differs.ranks:
        node_id = state.roster.ranks[rank].node_id
        if state.roster.ranks[rank].present:
            order = KillRanks(generation=state.generation, ranks=(rank,), reason="its state differs from its peers'")
            state.send(node_id, order)
            state.corrupted[rank] = f"held {differs.item} of step {differs.step} otherwise than its peers (silent corruption)"


def checkpoint_written(state: JobState, node_id: str, written: CheckpointWritten) -> None:
    if written.error:
        state.note("checkpoint_failed", node=node_id, step=written.step, error=written.error)
        return
    if not written.seconds:  # it was there before
        if state.checkpoint_step == NO_STEP:
            state.checkpoint_step = written.step
            state.note("checkpoint_found", step=written.step, path=written.path)
        return
    state.checkpoint_step = written.step
    state.note("checkpoint", step=written.step, path=written.path, seconds=round(written.seconds, 3))


def host_trouble(state: JobState, node_id: str, trouble: HostTrouble) -> None:
    node = state.roster.nodes[node_id]
    if trouble.text:
        node.troubles[trouble.kind] = trouble.text
        state.note("host_trouble", node=node_id, kind=trouble.kind, text=trouble.text)
    elif node.troubles.pop(trouble.kind, None):
        state.note("host_trouble_over", node=node_id, kind=trouble.kind)
