"""The steps do not advance: ask what the ranks wait for, name one, kill it. Over JobState.

A learned timeout may be wrong (an evaluation, longer than any before): then something is done only if a rank waits in a call.
"""

from deadpool.proto import messages
from deadpool.proto.messages import KillRanks, ReportCalls
from deadpool.supervisor.failures.hang import Culprit, find_culprit
from deadpool.supervisor.model.events import StepsStalled
from deadpool.supervisor.model.failure import Failure, FailureClass
from deadpool.supervisor.model.inquiry import Inquiry
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import Stage
from deadpool.supervisor.recovery.orders import KILL_TIMEOUT_S

_REPORT_TIMEOUT_S = 10.0  # an agent takes up to 3 s for the stacks


def stepping_generation(state: JobState) -> int | None:
    """Returns the generation whose ranks should be making steps now; None when none should, or nothing is known of steps.

    Between two loops they should once one of them waits for the others.
    """
    attempt = state.recovery.attempt
    first_step = state.phase is Phase.RECOVER and attempt is not None and attempt.stage is Stage.FIRST_STEP
    waits = state.phase is Phase.FINISH and any(rank.reopened for rank in state.roster.ranks)
    return state.generation if state.hooked and (state.phase is Phase.RUN or first_step or waits) else None


def open_inquiry(state: JobState) -> Inquiry | None:
    """Returns the inquiry under way; None when there is none, or it was about a generation that is over."""
    inquiry = state.failures.inquiry
    stepping = inquiry is not None and stepping_generation(state) == inquiry.generation
    return inquiry if stepping else None


def steps_stalled(state: JobState, event: StepsStalled, now_s: float) -> None:
    if event.generation != stepping_generation(state) or open_inquiry(state) is not None:
        return
    members = [node.node_id for node in state.roster.members()]
    state.failures.inquiry = Inquiry(
        generation=state.generation,
        stalled_s=event.stalled_s,
        sure=event.sure,
        deadline_s=now_s + _REPORT_TIMEOUT_S,
        owing=set(members),
        steps=tuple(rank.step for rank in state.roster.ranks),
    )
    state.note("no_progress", stalled_s=round(event.stalled_s, 1))
    for node_id in members:
        state.send(node_id, ReportCalls(generation=state.generation))


def answered(state: JobState, node_id: str, report: messages.CallReport) -> Inquiry | None:
    """Returns the inquiry that the node has answered, None when nothing was asked of it (any more)."""
    inquiry = open_inquiry(state)
    if inquiry is None or node_id not in inquiry.owing:
        return None
    inquiry.owing.discard(node_id)
    inquiry.ranks += report.ranks
    return inquiry


def conclude(state: JobState, inquiry: Inquiry, now_s: float) -> Failure | None:
    """All agents have answered, or will not any more: the culprit is killed; without one, returns the failure if it is one."""
    state.failures.inquiry = None
    ranks = sorted(inquiry.ranks, key=lambda each: each.rank)
    moved = [each.rank for each in ranks if each.step > inquiry.steps[each.rank]]
    if moved or any(rank.step > step for rank, step in zip(state.roster.ranks, inquiry.steps, strict=True)):
        state.note("progress_again", ranks=tuple(moved))
        return None
    culprit, why = find_culprit(ranks)
    if culprit is not None and not waits_for_leaver(state, inquiry):
        _name_culprit(state, inquiry, culprit, why, now_s)
        return None
    if not why and not inquiry.sure:
        state.note("no_hang", reason="no rank waits in a call, so they are at work between two steps")
        return None
    cause = f"no step for {inquiry.stalled_s:.0f} s: {why or 'no rank waits in a call'}"
    stacks = tuple(each.stacks for each in ranks if each.stacks)
    state.note("hang", stalled_s=round(inquiry.stalled_s, 1), reason=why, stacks=stacks)
    return Failure(cause=cause, failure_class=FailureClass.TRANSIENT, at_s=now_s - inquiry.stalled_s)


def waits_for_leaver(state: JobState, inquiry: Inquiry) -> bool:
    """Returns whether some rank may wait for one that has left: who left its loop after a step has done its part of that one."""
    leavers = state.failures.leavers.values()
    undone = any(not state.roster.ranks[left.rank].finished for left in leavers)
    newest = max((calls.step for calls in inquiry.ranks), default=None)
    return undone or any(newest is None or left.step <= newest for left in leavers)


def _name_culprit(state: JobState, inquiry: Inquiry, culprit: Culprit, why: str, now_s: float) -> None:
    node_id = state.roster.ranks[culprit.rank].node_id
    calls = next(each for each in inquiry.ranks if each.rank == culprit.rank)
    state.note(
        "hang",
        rank=culprit.rank,
        node=node_id,
        group=culprit.group,
        call=culprit.call,
        operation=culprit.operation,
        waiting=culprit.waiting,
        stalled_s=round(inquiry.stalled_s, 1),
        stopped=calls.stopped,
        stacks=(calls.stacks,) if calls.stacks else (),
        reason=why,
    )
    inquiry.culprit, inquiry.cause = culprit.rank, f"rank {culprit.rank} on {node_id} hangs: it {culprit.why}"
    inquiry.deadline_s = now_s + KILL_TIMEOUT_S
    state.failures.inquiry = inquiry
    state.send(node_id, KillRanks(generation=state.generation, ranks=(culprit.rank,), reason=f"it {culprit.why}"))
