"""What a failure means and what follows from it: exits, lost nodes, broken collectives, ranks that are late. Over JobState."""

from dataclasses import replace
from signal import Signals
from typing import assert_never

from deadpool.proto import messages
from deadpool.proto.config import OnExhausted
from deadpool.proto.faults import Target
from deadpool.proto.messages import KillRanks
from deadpool.supervisor.failures.attribution import blamed
from deadpool.supervisor.failures.classify import EarlierFailure, ErrorMark, Facts, FailureClass, What, classify, error_mark
from deadpool.supervisor.failures.hang_inquiry import conclude, open_inquiry
from deadpool.supervisor.failures.rules import rules_of
from deadpool.supervisor.injections import struck_at
from deadpool.supervisor.model.membership import NodeRole, Rank, choose_spare
from deadpool.supervisor.model.state import BrokenCollective, JobState, Phase
from deadpool.supervisor.model.timeline import Failure, Stage
from deadpool.supervisor.recovery import drained_ranks, protocol

_EXIT_S = 10.0  # from an exception in a rank's step to the exit of its process: longer, and the script may have caught it


def collective_failed(state: JobState, node_id: str, broken: messages.RankBroken, now_s: float) -> None:
    blames = blamed(broken.error, node_id, state.roster.live())
    state.note("collective_failed", rank=broken.rank, node=node_id, blames=blames, error=broken.error)
    if state.broken_collective is None:
        deadline_s = max(now_s + state.config.broken_collective_grace_s, state.exit_expected_until_s)
        state.broken_collective = BrokenCollective(
            node_id=node_id, rank=broken.rank, error=broken.error, at_s=now_s, deadline_s=deadline_s
        )


def rank_raised(state: JobState, node_id: str, raised: messages.RankRaised, now_s: float) -> None:
    """The rank will exit, and is the root cause of the collectives that fail by it. Its exit says all, and takes a while."""
    state.note("rank_raised", rank=raised.rank, node=node_id, error=raised.error)
    state.exit_expected_until_s = now_s + _EXIT_S
    if state.broken_collective is not None:
        state.broken_collective = replace(
            state.broken_collective, deadline_s=max(state.broken_collective.deadline_s, state.exit_expected_until_s)
        )


def broken_collective_expired(state: JobState, now_s: float) -> None:
    broken = state.broken_collective
    assert broken is not None
    peer = blamed(broken.error, broken.node_id, state.roster.live())
    cause = f"a collective failed on rank {broken.rank} and nobody died{f' (it blames {peer})' if peer else ''}: {broken.error}"
    failure = Failure(cause=cause, failure_class=FailureClass.TRANSIENT, node=broken.node_id, at_s=broken.at_s)
    if state.hooked:
        failed(state, failure, now_s)
    state.broken_collective = None


def inquiry_expired(state: JobState, now_s: float) -> None:
    inquiry = state.inquiry
    assert inquiry is not None
    if inquiry.blamed is not None:
        state.inquiry = None
        killed_in_vain(state, inquiry.blamed, protocol.KILL_TIMEOUT_S, now_s)
        return
    state.note("call_reports_missing", nodes=tuple(sorted(inquiry.owing)))
    failure = conclude(state, inquiry, now_s)
    if failure is not None:
        failed(state, failure, now_s)


def rank_exited(state: JobState, node_id: str, exited: messages.RankExited, now_s: float) -> None:
    """A process that played a rank is gone; not said of one that was replaced (Roster.plays)."""
    rank, attempt = state.roster.ranks[exited.rank], state.attempt
    if not rank.present:
        return
    finished, joining = rank.finished, rank.joining
    state.roster.gone(rank)
    state.roster.yields(rank, exited.yielded)
    state.heard_commit(exited.commit_step)
    rank.step = exited.step if exited.step != messages.NO_STEP else rank.step
    state.note("rank_exited", rank=exited.rank, node=node_id, pid=exited.pid, exit_code=exited.exit_code, signal=exited.signal)
    if state.phase is Phase.END:
        return
    if attempt is not None and exited.rank in attempt.killing:
        attempt.killing.discard(exited.rank)
        _replace(state, node_id, rank, exited.pid, joining=joining, now_s=now_s)
    elif exited.exit_code == 0:
        _left(state, node_id, rank, finished, now_s)
    else:
        _died(state, node_id, exited, now_s)


def _replace(state: JobState, node_id: str, rank: Rank, pid: int, *, joining: bool, now_s: float) -> None:
    """A rank that had to be killed is gone: it comes back on its node within this generation, unless its node is to blame."""
    attempt, story = state.attempt, state.story
    assert attempt is not None
    assert story is not None
    cause = f"rank {rank.rank} on {node_id} missed its deadline and was killed"
    if rank.rank in attempt.outside:
        failure = Failure(cause=story.first.cause, failure_class=FailureClass.TRANSIENT, ranks=(rank.rank,), at_s=now_s)
    else:
        failure = _transient(state, cause, node_id, (rank.rank,), now_s)
    if joining or failure.failure_class is FailureClass.PERMANENT:
        failed(state, failure, now_s)
        return
    state.roster.retired.add((node_id, pid))  # its agent may say so twice
    story.add(failure)
    protocol.assign(state, node_id, now_s=now_s)


def _left(state: JobState, node_id: str, rank: Rank, finished: bool, now_s: float) -> None:
    """A rank's process exited with 0: done, unless a recovery needs it."""
    if state.phase is Phase.RECOVER and state.attempt is not None and state.attempt.stage is not Stage.FIRST_STEP:
        cause = f"rank {rank.rank} on {node_id} left during a recovery (exit code 0)"
        failure = Failure(cause=cause, failure_class=FailureClass.TRANSIENT, node=node_id, ranks=(rank.rank,), at_s=now_s)
        failed(state, failure, now_s)
        return
    rank.done, rank.finished = True, finished
    protocol.passed(state, rank.rank, Stage.FIRST_STEP, now_s=now_s)
    protocol.finish_if_done(state, now_s=now_s)


def _signal_name(number: int) -> str:
    return Signals(number).name if number in list(Signals) else f"signal {number}"  # real-time ones have no names


def _died(state: JobState, node_id: str, exited: messages.RankExited, now_s: float) -> None:
    rank = state.roster.ranks[exited.rank]
    mark = error_mark(rank=exited.rank, step=rank.step, exit_code=exited.exit_code, error=exited.error, log_tail=exited.log_tail)
    how = f"was killed by {_signal_name(exited.signal)}" if exited.signal else f"failed: exit code {exited.exit_code}"
    how = state.corrupted.pop(exited.rank, how)
    inquiry = open_inquiry(state)
    hung = inquiry is not None and inquiry.blamed == exited.rank
    cause = inquiry.cause if inquiry is not None and hung else f"rank {exited.rank} on {node_id} {how}"
    details = exited.error.strip() or exited.log_tail.strip()
    at_s = struck_at(state, Target.RANK, exited.rank, now_s)
    if not state.hooked:
        _failed_unhooked(state, cause, details, node_id, (exited.rank,), now_s)
        return
    what = What.HANG if hung else What.SIGNAL if exited.signal else What.EXIT
    facts = _facts(state, node_id, what, now_s, exited=exited, mark=mark)
    if what is What.EXIT:
        state.errors.append(mark)
    failure_class = _classified(state, cause, facts)
    if failure_class is FailureClass.FATAL:
        state.end(1, cause, now_s=now_s, details=details)
        return
    failure = Failure(
        cause=cause,
        failure_class=failure_class,
        node=node_id,
        ranks=(exited.rank,),
        at_s=at_s,
        counted=_is_new(state, rank),
        details=details,
    )
    state.past.append(EarlierFailure(node_id=node_id, what=what, at_s=now_s))
    failed(state, failure, now_s)


def node_lost(state: JobState, node_id: str, reason: str, now_s: float) -> None:
    roster = state.roster
    node = roster.nodes.get(node_id)
    if node is None or not node.live:
        return
    drained_ranks.forget(state, drained_ranks.on_node(state, node_id))
    cause = f"{node_id} lost: {reason}"
    counted = any(_is_new(state, rank) for rank in roster.of_node(node_id))
    all_done = all(rank.done for rank in roster.of_node(node_id))
    was_member = node_id in roster.seats
    if state.phase is Phase.FINISH and was_member and all_done:
        for rank in roster.vacate(node_id, NodeRole.LOST):
            roster.ranks[rank].done = True  # nothing there is needed any more
        state.note("node_lost", node=node_id, reason=reason)
        return
    ranks = roster.vacate(node_id, NodeRole.LOST)
    state.note("node_lost", node=node_id, reason=reason, ranks=ranks)
    match state.phase:
        case Phase.ASSEMBLE:
            del roster.nodes[node_id]
            if len(roster.live()) < state.config.fewest_nodes:
                state.assembled_s = None
        case Phase.END:
            state.quit_if_all_stopped()
        case Phase.START | Phase.RUN | Phase.RECOVER | Phase.FINISH:
            failure = Failure(
                cause=cause,
                failure_class=FailureClass.PERMANENT,
                node=node_id,
                ranks=ranks,
                at_s=struck_at(state, Target.NODE, node.index, now_s),
                counted=counted,
            )
            if was_member and not state.hooked and _ranks_run(state):
                _failed_unhooked(state, cause, "", node_id, ranks, now_s)
            elif was_member or _holds_replicas(state, node_id):
                failed(state, failure, now_s)
            else:
                protocol.vault_gone(state, node_id, now_s=now_s)
        case _:
            assert_never(state.phase)


def _holds_replicas(state: JobState, node_id: str) -> bool:
    """Returns whether the running generation cannot go on protecting its state without this node."""
    attempt = state.attempt
    awaiting_plan = attempt is not None and attempt.stage in (Stage.SPARE, Stage.STORE, Stage.QUIESCE, Stage.PLAN)
    return state.hooked and node_id in state.holders and not awaiting_plan and state.phase is not Phase.FINISH


def _ranks_run(state: JobState) -> bool:
    """Returns whether rank processes of the present generation exist, or were at least ordered."""
    return state.attempt is None or state.attempt.stage is Stage.BEGIN


def _is_new(state: JobState, rank: Rank) -> bool:
    """Returns whether the rank's process was ordered within the present recovery: its failure is no progress."""
    return state.story is not None and rank.since >= state.story.began_generation


def failed(state: JobState, failure: Failure, now_s: float) -> None:
    """A failure that the job may survive."""
    attempt = state.attempt
    if failure.failure_class is FailureClass.PERMANENT and failure.node in state.roster.seats:
        _settle_permanent(state, failure)
    nothing_runs = attempt is not None and attempt.afresh and attempt.stage is not Stage.BEGIN
    afresh = not state.hooked or nothing_runs  # else it is asked first what there is, however soon after a start
    protocol.recover(state, failure, now_s=now_s, afresh=afresh)


def killed_in_vain(state: JobState, number: int, timeout_s: float, now_s: float) -> None:
    """A node cannot end one of its processes: it is not trusted any more."""
    node_id = state.roster.ranks[number].node_id
    cause = f"{node_id} has not ended rank {number} within {timeout_s:g} s of SIGKILL"
    failed(
        state,
        Failure(cause=cause, failure_class=FailureClass.PERMANENT, node=node_id, ranks=(number,), at_s=now_s),
        now_s,
    )


def launch_failed(state: JobState, node_id: str, message: messages.LaunchFailed, now_s: float) -> None:
    """The user's to mend, unless the job has run well: then it is this node that cannot be used."""
    reason = f"{node_id}: {message.reason}"
    if state.commit_step == messages.NO_STEP:
        state.end(2, reason, now_s=now_s)
    elif node_id in state.roster.seats:
        failure = Failure(cause=reason, failure_class=FailureClass.PERMANENT, node=node_id, at_s=now_s)
        failed(state, failure, now_s)
    else:
        state.roster.vacate(node_id, NodeRole.FAULTY)
        state.note("node_faulty", node=node_id, cause=reason)


def late(state: JobState, cause: str, node_id: str, now_s: float, *, counted: bool = True) -> None:
    """A stage took too long, or failed: the next generation, with the same members."""
    failure = Failure(cause=cause, failure_class=FailureClass.TRANSIENT, node=node_id, at_s=now_s, counted=counted)
    failed(state, failure, now_s)


def _failed_unhooked(state: JobState, cause: str, details: str, node_id: str, ranks: tuple[int, ...], now_s: float) -> None:
    """A script without join(): all ranks start anew, max_restarts times, as under torchrun."""
    if state.restarts >= state.config.max_restarts:
        state.end(1, cause, now_s=now_s, details=details)
        return
    state.restarts += 1
    failure = Failure(cause=cause, failure_class=FailureClass.TRANSIENT, node=node_id, ranks=ranks, at_s=now_s, details=details)
    protocol.recover(state, failure, now_s=now_s, afresh=True)


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


def _transient(state: JobState, cause: str, node_id: str, ranks: tuple[int, ...], now_s: float) -> Failure:
    """Returns the failure of a process that had to be killed."""
    failure_class = _classified(state, cause, _facts(state, node_id, What.LATE, now_s))
    state.past.append(EarlierFailure(node_id=node_id, what=What.LATE, at_s=now_s))
    return Failure(cause=cause, failure_class=failure_class, node=node_id, ranks=ranks, at_s=now_s)


def _classified(state: JobState, cause: str, facts: Facts) -> FailureClass:
    failure_class, rule, why = classify(rules_of(state.config.failure_rules), facts)
    state.note("diagnosis", cause=cause, failure_class=failure_class, rule=rule, reason=why)
    return failure_class


def _facts(
    state: JobState,
    node_id: str,
    what: What,
    now_s: float,
    *,
    exited: messages.RankExited | None = None,
    mark: ErrorMark | None = None,
) -> Facts:
    """Returns what the rules may ask about a failure of one of the node's processes."""
    everywhere = {each.rank for each in [*state.errors, mark] if each.same_elsewhere(mark)} if mark is not None else set()
    ranks = {rank.rank for rank in state.roster.ranks}
    return Facts(
        what=what,
        exit_code=exited.exit_code if exited is not None else 0,
        signal=exited.signal if exited is not None else 0,
        text=f"{exited.error}\n{exited.log_tail}" if exited is not None else "",
        committed=state.commit_step != messages.NO_STEP,
        again=mark in state.errors,
        everywhere=len(ranks) > 1 and everywhere == ranks,
        readings=state.readings.get(node_id, {}),
        earlier=[(past.what, now_s - past.at_s) for past in state.past if past.node_id == node_id],
    )
