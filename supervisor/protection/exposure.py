"""How long a swap has left the job exposed: from the failure until all that is unique has its replicas again. Over JobState.

The first state that is committed in a generation says that it has. It may be before or after every rank has made its first step.
"""

from dataclasses import replace

from deadpool.supervisor.model.state import JobState


def replicated(state: JobState, step: int, *, now_s: float) -> None:
    """S_step is committed, in the present generation."""
    recovery = state.recovery
    if recovery.story is not None:
        story = recovery.story
        if story.spares and story.replicated_s is None:
            story.replicated_s = now_s
            _note(state, step, now_s - story.began_s)
        return
    record = recovery.records[-1] if recovery.records else None
    if record is not None and record.generation == state.generation and record.spare and record.exposed_s < 0:
        exposed_s = now_s - (state.account.began_s + record.ended_s - record.total_s)
        recovery.records[-1] = replace(record, exposed_s=exposed_s)
        _note(state, step, exposed_s)


def _note(state: JobState, step: int, exposed_s: float) -> None:
    state.note("replicated_again", step=step, exposed_s=exposed_s)
