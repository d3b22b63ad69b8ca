"""Which ranks' states are not protected, since when and why. Over JobState."""

from deadpool.proto.messages import ProtectionChanged
from deadpool.supervisor.model.lineage import usable
from deadpool.supervisor.model.state import JobState, Unprotected
from deadpool.supervisor.protection.exposure import replicated


def protection_changed(state: JobState, changed: ProtectionChanged, *, now_s: float) -> None:
    """A rank cannot protect its states, so that none is committed; or one is, by all ranks. Noted once."""
    if not changed.reason:
        replicated(state, changed.step, now_s=now_s)
        if state.protection.unprotected:
            state.note("protected_again", rank=changed.rank, step=changed.step)
        state.protection.unprotected.clear()
        return
    known = changed.reason in {
        each.reason for each in state.protection.unprotected.values() if each.generation == changed.generation
    }
    state.protection.unprotected[changed.rank] = Unprotected(
        generation=changed.generation, step=changed.step, reason=changed.reason
    )
    if not known:
        state.note("unprotected", rank=changed.rank, since_step=changed.step, reason=changed.reason)


def unprotected(state: JobState) -> str:
    """Returns since when and why the state is not protected, "" when it is. Each generation tries, and reports it anew."""
    present, commit_step = state.generation, state.progress.commit_step
    reported = state.protection.unprotected
    now = {rank: each for rank, each in reported.items() if each.generation == present or each.step > commit_step}
    doubt = state.protection.doubted
    if doubt is not None and usable(doubt.generation, doubt.step, state.recovery.lineage):
        return f"unprotected since step {doubt.step}: {doubt.reason}"
    if not now:
        return ""
    rank, first = min(now.items(), key=lambda entry: (entry[1].step, entry[0]))
    return f"unprotected since step {first.step}: rank {rank}: {first.reason}"
