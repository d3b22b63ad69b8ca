"""Persistent checkpoints: asked for, written, found. Over JobState."""

from deadpool.proto.messages import NO_STEP, CheckpointWritten, WriteCheckpoint
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState


def checkpoint_requested(state: JobState) -> None:
    """The request stays until a checkpoint is written: rank 0, which arranges it, may be lost meanwhile."""
    if not state.config.checkpoint_dir:
        state.note("checkpoint_failed", node="", step=state.progress.commit_step, error="there is no --checkpoint-dir")
        return
    state.protection.checkpoint_asked = True
    state.note("checkpoint_requested")
    ask_for_checkpoint(state)


def ask_for_checkpoint(state: JobState) -> None:
    whole = not state.roster.excluded  # else it waits until all ranks have returned
    if state.protection.checkpoint_asked and state.phase is Phase.RUN and whole:
        state.send(state.roster.ranks[0].node_id, WriteCheckpoint(generation=state.generation))


def checkpoint_written(state: JobState, node_id: str, written: CheckpointWritten) -> None:
    if written.error:
        state.note("checkpoint_failed", node=node_id, step=written.step, error=written.error)
        return
    if not written.seconds:  # it was there before
        if state.protection.checkpoint_step == NO_STEP:
            state.protection.checkpoint_step = written.step
            state.note("checkpoint_found", step=written.step, path=written.path)
        return
    state.protection.checkpoint_step, state.protection.checkpoint_asked = written.step, False
    state.note("checkpoint", step=written.step, path=written.path, seconds=round(written.seconds, 3))
