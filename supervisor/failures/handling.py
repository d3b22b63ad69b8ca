"""What follows from a failure: a rank's exit, a lost node, a broken collective, a rank that is late. Over JobState.

a rank's exit -> what it means (facts.py): killed by us | done | left | failed -> its class (classify.py) -> recovery or end
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from deadpool.proto import messages
from deadpool.proto.config import OnExhausted
from deadpool.proto.faults import Target
from deadpool.proto.messages import KillRanks
from deadpool.supervisor.failures.attribution import named_node
from deadpool.supervisor.failures.classify import Facts, classify
from deadpool.supervisor.failures.facts import (
    ExitMeaning,
    RankExit,
    exit_facts,
    exit_of,
    is_fresh,
    late_facts,
    leaver_cause,
    leaver_facts,
    may_join_yet,
    needs_holder,
    ranks_run,
    refusal,
)
from deadpool.supervisor.failures.hang_inquiry import answered, conclude, waits_for_leaver
from deadpool.supervisor.failures.rules import rules_of
from deadpool.supervisor.injections import injected_at
from deadpool.supervisor.model.failure import EarlierFailure, Failure, FailureClass, Leaver, What
from deadpool.supervisor.model.inquiry import Inquiry
from deadpool.supervisor.model.membership import Node, NodeRole, choose_spare
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import BrokenCollective, JobState
from deadpool.supervisor.model.timeline import Stage
from deadpool.supervisor.protection.corruption import corrupted_ended
from deadpool.supervisor.recovery import drained_ranks, exclusion, protocol
from deadpool.supervisor.recovery.orders import KILL_TIMEOUT_S, assign
from deadpool.supervisor.recovery.running import finish_if_done

_EXIT_S = 10.0  # from an exception in a rank's step to the exit of its process: longer, and the script may have caught it

# ------------------------------------------------------------ a rank's process


def rank_exited(state: JobState, node_id: str, exited: messages.RankExited, now_s: float) -> None:
    """A process that played a rank is gone; not called for one that was replaced (Roster.plays)."""
    exit = exit_of(state, node_id, exited)
    said_s = state.failures.exits_expected.pop(exited.rank, now_s + _EXIT_S) - _EXIT_S
    _note_exit(state, node_id, exited)
    if state.phase is Phase.END:
        return
    match exit.meaning:
        case ExitMeaning.KILLED:
            _replace(state, node_id, exited, exit, now_s)
        case ExitMeaning.DONE:
            _done(state, node_id, exited, exit, said_s, now_s)
        case ExitMeaning.LEFT:
            _left(state, node_id, exited, exit, now_s)
        case ExitMeaning.FAILED:
            _died(state, node_id, exited, exit, now_s)
        case _:
            assert_never(exit.meaning)


def _note_exit(state: JobState, node_id: str, exited: messages.RankExited) -> None:
    """The rank has no process, and has left behind what it knew."""
    rank = state.roster.ranks[exited.rank]
    state.roster.gone(rank)
    state.roster.yields(rank, exited.yielded)
    state.progress.commit_known(exited.commit_step)
    rank.step = exited.step if exited.step != messages.NO_STEP else rank.step
    state.account.step_begun(rank.step)
    state.note("rank_exited", rank=exited.rank, node=node_id, pid=exited.pid, exit_code=exited.exit_code, signal=exited.signal)


def _replace(state: JobState, node_id: str, exited: messages.RankExited, exit: RankExit, now_s: float) -> None:
    """A rank that had to be killed comes back on its node within this generation, unless its node is to be given up."""
    attempt, story = state.recovery.attempt, state.recovery.story
    assert attempt is not None
    assert story is not None
    attempt.killing.discard(exited.rank)
    if exited.rank in attempt.outside:
        failure = _transient(story.first.cause, "", (exited.rank,), now_s)
    else:
        failure = _late_process(state, node_id, exited.rank, now_s)
    if exit.joining or failure.failure_class is FailureClass.PERMANENT:
        failed(state, failure, now_s)
        return
    if exited.pid:  # else it was never forked, and all messages that name no process would be its own
        state.roster.retired.add((node_id, exited.pid))  # its agent may say so twice
    story.add(failure)
    assign(state, node_id, now_s=now_s)


def _done(state: JobState, node_id: str, exited: messages.RankExited, exit: RankExit, said_s: float, now_s: float) -> None:
    """Nothing more is wanted of it, whatever its process died of while it was exiting; unless the others miss it.

    `said_s`: when it has said that it would exit, or did.
    """
    number, rank = exited.rank, state.roster.ranks[exited.rank]
    if exited.exit_code != 0:
        state.note("died_exiting", rank=number, node=node_id, exit_code=exited.exit_code, signal=exited.signal)
    rank.done, rank.finished = True, exit.finished
    if state.hooked and state.phase is not Phase.FINISH:  # of its own accord: also out of its loop
        state.failures.leavers[number] = Leaver(node_id=node_id, rank=number, step=rank.step, at_s=said_s)
    if exit.finished or not state.hooked:
        protocol.passed(state, number, Stage.FIRST_STEP, now_s=now_s)
    if any(each.reopened for each in state.roster.ranks):  # others go on with another loop
        state.failures.leavers[number] = Leaver(node_id=node_id, rank=number, step=rank.step, at_s=said_s)
        missed(state, now_s)
    elif not _missed_in_a_collective(state, now_s):  # what scripts have done since is wrong, though all of them may exit with 0
        finish_if_done(state, now_s=now_s)
        first_step_made(state, now_s)


def _left(state: JobState, node_id: str, exited: messages.RankExited, exit: RankExit, now_s: float) -> None:
    """A recovery needs it. One that had yet to get into its step will leave again; a survivor may have been behind its loop."""
    if exit.joining:
        step = exited.step if exited.step != messages.NO_STEP else state.roster.ranks[exited.rank].step
        _judge_leaver(state, Leaver(node_id=node_id, rank=exited.rank, step=step, at_s=now_s), (exited.rank,), now_s)
        return
    cause = f"rank {exited.rank} on {node_id} left during a recovery (exit code 0)"
    failed(state, _transient(cause, node_id, (exited.rank,), now_s), now_s)


def _died(state: JobState, node_id: str, exited: messages.RankExited, exit: RankExit, now_s: float) -> None:
    """Its failure is classified: fatal ones end the job, others lead to a recovery."""
    corrupted_ended(state, exited.rank)
    if state.progress.commit_step == messages.NO_STEP and (reason := refusal(exited)):
        state.end(2, f"{node_id}: {reason}", now_s=now_s)
        return
    at_s = injected_at(state, Target.RANK, exited.rank, now_s)
    if not state.hooked:
        _failed_unhooked(state, exit.cause, exit.details, node_id, (exited.rank,), now_s)
        return
    facts = exit_facts(state, node_id, exited, exit, now_s)
    if exit.what is What.EXIT:
        state.failures.errors.append(exit.mark)
    failure_class = _classified(state, exit.cause, facts)
    if failure_class is FailureClass.FATAL:
        state.end(1, exit.cause, now_s=now_s, details=exit.details)
        return
    state.failures.earlier.append(EarlierFailure(node_id=node_id, what=exit.what, at_s=now_s))
    failure = Failure(
        cause=exit.cause,
        failure_class=failure_class,
        node=node_id,
        ranks=(exited.rank,),
        at_s=at_s,
        counted=exit.fresh,
        details=exit.details,
    )
    failed(state, failure, now_s)


def rank_raised(state: JobState, node_id: str, raised: messages.RankRaised, now_s: float) -> None:
    """The rank will exit, and is the root cause of the collectives that fail by it. Its exit says all, and takes a while."""
    state.note("rank_raised", rank=raised.rank, node=node_id, error=raised.error)
    failures = state.failures
    failures.exits_expected[raised.rank] = now_s + _EXIT_S
    if failures.broken_collective is not None:
        deadline_s = max(failures.broken_collective.deadline_s, failures.exit_expected_until_s())
        failures.broken_collective = replace(failures.broken_collective, deadline_s=deadline_s)


def kill_failed(state: JobState, number: int, timeout_s: float, now_s: float) -> None:
    """A node cannot end one of its processes: it is not trusted any more."""
    node_id = state.roster.ranks[number].node_id
    cause = f"{node_id} has not ended rank {number} within {timeout_s:g} s of SIGKILL"
    failed(state, _permanent(cause, node_id, (number,), now_s), now_s)


# ------------------------------------------------------------ a node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """A node that is gone. `fresh`: a process of its ranks was ordered within the present recovery."""

    node: Node
    reason: str
    ranks: tuple[int, ...]
    was_member: bool
    fresh: bool


def nodes_lost(state: JobState, lost: Mapping[str, str], now_s: float, *, comes_back: bool = False) -> None:
    """All of them are gone before anything follows: one generation for all. `lost`: by node the reason.

    `comes_back`: another agent of it is there already, and will be a spare.
    Where the script may still be on its way to join(), and a spare takes a node's place, the new start is not counted.
    """
    roster, may_join = state.roster, may_join_yet(state, now_s)
    losses = list(filter(None, [_gone(state, node_id, reason, now_s) for node_id, reason in lost.items()]))
    match state.phase:
        case Phase.ASSEMBLE:
            for loss in losses:
                del roster.nodes[loss.node.node_id]
            if losses and len(roster.live()) < state.config.fewest_nodes:
                state.progress.assembled(None)
        case Phase.END:
            if losses:
                state.quit_if_all_stopped()
        case Phase.START | Phase.RUN | Phase.RECOVER | Phase.FINISH:
            unjoined = may_join and (comes_back or bool(roster.spares()))
            _go_on_without(state, losses, now_s, unjoined=unjoined)
        case _:
            assert_never(state.phase)


def _gone(state: JobState, node_id: str, reason: str, now_s: float) -> _Loss | None:
    """Returns the loss, None when nothing follows from it."""
    roster = state.roster
    node = roster.nodes.get(node_id)
    if node is None or not node.live:
        return None
    drained_ranks.forget(state, drained_ranks.on_node(state, node_id))
    fresh = any(is_fresh(state, rank) for rank in roster.of_node(node_id))
    all_done = all(rank.done for rank in roster.of_node(node_id))
    was_spare = node.role is NodeRole.SPARE and state.phase is not Phase.END
    was_member = node_id in roster.seats
    ranks = roster.vacate(node_id, NodeRole.LOST)
    node.lost_why, node.lost_s = reason, now_s
    if state.phase is Phase.FINISH and was_member and all_done:
        for rank in ranks:
            roster.ranks[rank].done = True  # nothing there is needed any more
        state.note("node_lost", node=node_id, reason=reason)
        return None
    if was_spare:
        state.note("node_lost", node=node_id, reason=reason, ranks=ranks, spares_left=len(roster.spares()))
    elif not (state.phase is Phase.END and node.stopped):  # then it has gone as it was told to
        state.note("node_lost", node=node_id, reason=reason, ranks=ranks)
    return _Loss(node=node, reason=reason, ranks=ranks, was_member=was_member, fresh=fresh)


def _go_on_without(state: JobState, losses: Iterable[_Loss], now_s: float, *, unjoined: bool) -> None:
    """What follows, while ranks run or are to run."""
    missed, others = list[Failure](), list[str]()
    for loss in losses:
        node_id = loss.node.node_id
        at_s = injected_at(state, Target.NODE, loss.node.index, now_s)
        if loss.was_member or needs_holder(state, node_id):
            missed.append(_permanent(f"{node_id} lost: {loss.reason}", node_id, loss.ranks, at_s, counted=loss.fresh))
        else:
            others.append(node_id)
    if state.phase is Phase.FINISH:
        for node_id in others:
            state.recovery.holder_lost(node_id)
    if missed and not state.hooked and ranks_run(state) and not unjoined:
        ranks = tuple(rank for each in missed for rank in each.ranks)
        _failed_unhooked(state, "; ".join(each.cause for each in missed), "", missed[0].node, ranks, now_s)
    elif missed:
        failed(state, missed[0], now_s, also=missed[1:])
    else:
        for node_id in others:
            protocol.vault_gone(state, node_id, now_s=now_s)


def launch_failed(state: JobState, node_id: str, message: messages.LaunchFailed, now_s: float) -> None:
    """The user's to mend, unless the job has run well: then it is this node that cannot be used."""
    reason = f"{node_id}: {message.reason}"
    if state.progress.commit_step == messages.NO_STEP:
        state.end(2, reason, now_s=now_s)
    elif node_id in state.roster.seats:
        failed(state, _permanent(reason, node_id, (), now_s), now_s)
    else:
        state.roster.vacate(node_id, NodeRole.FAULTY)
        state.note("node_faulty", node=node_id, cause=reason)


# ------------------------------------------------------------ nobody has died


def collective_failed(state: JobState, node_id: str, broken: messages.RankBroken, now_s: float) -> None:
    peer = named_node(broken.error, node_id, state.roster.live())
    state.note("collective_failed", rank=broken.rank, node=node_id, error_names=peer, error=broken.error)
    if broken.needs:
        _needs_all(state, broken, now_s)
        return
    if state.failures.broken_collective is None:
        deadline_s = max(now_s + state.config.broken_collective_grace_s, state.failures.exit_expected_until_s())
        state.failures.broken_collective = BrokenCollective(
            node_id=node_id, rank=broken.rank, error=broken.error, at_s=now_s, deadline_s=deadline_s
        )
    _missed_in_a_collective(state, now_s)


def _needs_all(state: JobState, broken: messages.RankBroken, now_s: float) -> None:
    """A call has no result without the ranks that are excluded: none are in this job from now on."""
    exclusion.all_are_needed(state, broken.needs, broken.error)
    failed(state, _transient(f"rank {broken.rank}: {broken.error}", "", (), now_s, counted=False), now_s)


def broken_collective_expired(state: JobState, now_s: float) -> None:
    broken = state.failures.broken_collective
    assert broken is not None
    peer = named_node(broken.error, broken.node_id, state.roster.live())
    names = f" (the error names {peer})" if peer else ""
    cause = f"a collective failed on rank {broken.rank} and nobody died{names}: {broken.error}"
    state.failures.broken_collective = None
    if state.hooked and not missed(state, now_s):
        failed(state, _transient(cause, broken.node_id, (), broken.at_s), now_s)


def _missed_in_a_collective(state: JobState, now_s: float) -> bool:
    """A collective has failed and a rank has left its step loop: nothing else needs to be waited for, whichever came first.

    Returns whether so.
    """
    failures = state.failures
    found = False
    if failures.broken_collective is not None and failures.leavers and now_s >= failures.exit_expected_until_s():
        failures.broken_collective = None
        found = missed(state, now_s)
    return found


def step_begun(state: JobState, step: int, now_s: float) -> None:
    """A rank is in this step. What one that left in an earlier step has left undone will never be committed: it is missed.

    While a generation is brought up a rank may still show the step that it was in before.
    """
    left = [each for each in _undone(state) if each.step != messages.NO_STEP and each.step < step]
    if left and state.phase is Phase.RUN and now_s >= state.failures.exit_expected_until_s():
        missed(state, now_s)


def first_step_made(state: JobState, now_s: float) -> None:
    """A rank has made its first step after a recovery: when only ranks are behind that have left in it, they are missed."""
    attempt = state.recovery.attempt
    if state.phase is Phase.RECOVER and attempt is not None and attempt.stage is Stage.FIRST_STEP:
        left = {each.rank for each in _undone(state)}
        if left and attempt.behind[Stage.FIRST_STEP] <= left and now_s >= state.failures.exit_expected_until_s():
            missed(state, now_s)


def _undone(state: JobState) -> list[Leaver]:
    """Returns the ranks that have left in the middle of a step: their part of it is missing."""
    return [each for each in state.failures.leavers.values() if not state.roster.ranks[each.rank].finished]


def missed(state: JobState, now_s: float) -> bool:
    """Something has failed, or stands still, because a rank has left its step loop: it is the root cause. Returns whether so."""
    leavers = state.failures.leavers
    if not leavers:
        return False
    _judge_leaver(state, min(leavers.values(), key=lambda each: each.at_s), tuple(sorted(leavers)), now_s)
    return True


def _judge_leaver(state: JobState, left: Leaver, ranks: tuple[int, ...], now_s: float) -> None:
    """A rank has left although others need it: a failure like that of a process which ends with an error. `ranks`: all such."""
    cause = leaver_cause(left)
    facts, mark = leaver_facts(state, left, now_s)
    state.failures.errors.append(mark)
    failure_class = _classified(state, cause, facts)
    if failure_class is FailureClass.FATAL:
        state.end(1, cause, now_s=now_s)
        return
    state.failures.earlier.append(EarlierFailure(node_id=left.node_id, what=What.EXIT, at_s=now_s))
    failed(state, replace(_transient(cause, left.node_id, ranks, now_s), failure_class=failure_class), now_s)


def inquiry_expired(state: JobState, now_s: float) -> None:
    inquiry = state.failures.inquiry
    assert inquiry is not None
    if inquiry.culprit is not None:
        state.failures.inquiry = None
        kill_failed(state, inquiry.culprit, KILL_TIMEOUT_S, now_s)
        return
    state.note("call_reports_missing", nodes=tuple(sorted(inquiry.owing)))
    _conclude(state, inquiry, now_s)


def calls_reported(state: JobState, node_id: str, report: messages.CallReport, now_s: float) -> None:
    inquiry = answered(state, node_id, report)
    if inquiry is not None and not inquiry.owing:
        _conclude(state, inquiry, now_s)


def _conclude(state: JobState, inquiry: Inquiry, now_s: float) -> None:
    failure = conclude(state, inquiry, now_s)
    if failure is not None and not (waits_for_leaver(state, inquiry) and missed(state, now_s)):
        failed(state, failure, now_s)


def late(state: JobState, cause: str, node_id: str, now_s: float, *, counted: bool = True) -> None:
    """A stage took too long, or failed: the next generation, with the same members."""
    failed(state, _transient(cause, node_id, (), now_s, counted=counted), now_s)


# ------------------------------------------------------------ what follows


def failed(state: JobState, failure: Failure, now_s: float, *, also: Sequence[Failure] = ()) -> None:
    """A failure that the job may survive. `also`: others that were found with it."""
    attempt = state.recovery.attempt
    if failure.failure_class is FailureClass.PERMANENT and failure.node in state.roster.seats:
        _settle_permanent(state, failure)
    nothing_runs = attempt is not None and attempt.from_scratch and attempt.stage is not Stage.BEGIN
    from_scratch = not state.hooked or nothing_runs  # else it is asked first what there is, however soon after a start
    protocol.recover(state, failure, also=also, now_s=now_s, from_scratch=from_scratch)


def _failed_unhooked(state: JobState, cause: str, details: str, node_id: str, ranks: tuple[int, ...], now_s: float) -> None:
    """A script without join(): all ranks start anew, max_restarts times, as under torchrun."""
    if state.recovery.restarts >= state.config.max_restarts:
        state.end(1, cause, now_s=now_s, details=details)
        return
    failure = replace(_transient(cause, node_id, ranks, now_s), details=details)
    protocol.restart(state, failure, now_s=now_s)


def _settle_permanent(state: JobState, failure: Failure) -> None:
    """A node that lives but is not trusted with ranks any more gives them up, if there is a spare to take them."""
    roster = state.roster
    spare, why = choose_spare(roster.nodes)
    if spare is None and state.config.on_exhausted is OnExhausted.WAIT:
        state.note("kept_on_node", node=failure.node, reason=f"{why}: the same node gets its ranks again")
        return
    others = tuple(rank.rank for rank in roster.of_node(failure.node) if rank.present)
    roster.vacate(failure.node, NodeRole.FAULTY)
    state.note("node_faulty", node=failure.node, cause=failure.cause)
    if others:
        reason = f"{failure.node} gives up its ranks"
        state.send(failure.node, KillRanks(generation=state.generation, ranks=others, reason=reason))


def _late_process(state: JobState, node_id: str, number: int, now_s: float) -> Failure:
    """Returns the failure of a process that had to be killed."""
    cause = f"rank {number} on {node_id} missed its deadline and was killed"
    failure_class = _classified(state, cause, late_facts(state, node_id, now_s))
    state.failures.earlier.append(EarlierFailure(node_id=node_id, what=What.LATE, at_s=now_s))
    return replace(_transient(cause, node_id, (number,), now_s), failure_class=failure_class)


def _classified(state: JobState, cause: str, facts: Facts) -> FailureClass:
    failure_class, rule, why = classify(rules_of(state.config.failure_rules), facts)
    state.note("diagnosis", cause=cause, failure_class=failure_class, rule=rule, reason=why)
    return failure_class


def _transient(cause: str, node_id: str, ranks: tuple[int, ...], at_s: float, *, counted: bool = True) -> Failure:
    return Failure(cause=cause, failure_class=FailureClass.TRANSIENT, node=node_id, ranks=ranks, at_s=at_s, counted=counted)


def _permanent(cause: str, node_id: str, ranks: tuple[int, ...], at_s: float, *, counted: bool = True) -> Failure:
    return Failure(cause=cause, failure_class=FailureClass.PERMANENT, node=node_id, ranks=ranks, at_s=at_s, counted=counted)
