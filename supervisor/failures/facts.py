"""What is known of a failure: gathered from the job's state and what was reported. Nothing here changes anything."""

import re
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from deadpool.proto.messages import NO_STEP, RankExited
from deadpool.supervisor.failures.classify import Facts
from deadpool.supervisor.failures.hang_inquiry import open_inquiry
from deadpool.supervisor.model.failure import ErrorMark, Leaver, What, error_mark
from deadpool.supervisor.model.membership import Rank
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import Stage

JOIN_AWAITED_S = 120.0  # so long after its start a script that has not called join() may still import what it needs
_REFUSAL = re.compile(r"^(?:\[rank\d+\]: )?deadpool\.host\.errors\.ConfigError: (.+)$", re.MULTILINE)


class ExitMeaning(StrEnum):
    KILLED = "killed"  # by our own order: its place is wanted
    DONE = "done"
    LEFT = "left"  # with 0, though a recovery needs it
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """A rank's process has ended. `fresh`: it was ordered within the present recovery, so that its end is no progress."""

    meaning: ExitMeaning
    what: What
    cause: str
    details: str  # traceback or last log lines
    mark: ErrorMark
    joining: bool
    finished: bool
    fresh: bool


def exit_of(state: JobState, node_id: str, exited: RankExited) -> RankExit:
    """Returns what there is to say of the end of the process that plays the rank."""
    rank = state.roster.ranks[exited.rank]
    inquiry = open_inquiry(state)
    hung = inquiry is not None and inquiry.culprit == exited.rank
    step = exited.step if exited.step != NO_STEP else rank.step
    return RankExit(
        meaning=_meaning(state, exited),
        what=What.HANG if hung else What.SIGNAL if exited.signal else What.EXIT,
        cause=inquiry.cause if inquiry is not None and hung else f"rank {exited.rank} on {node_id} {_how(state, exited)}",
        details=exited.error.strip() or exited.log_tail.strip(),
        mark=error_mark(rank=exited.rank, step=step, exit_code=exited.exit_code, error=exited.error, log_tail=exited.log_tail),
        joining=rank.joining,
        finished=rank.finished,
        fresh=is_fresh(state, rank),
    )


def _meaning(state: JobState, exited: RankExited) -> ExitMeaning:
    attempt = state.recovery.attempt
    if attempt is not None and exited.rank in attempt.killing:
        return ExitMeaning.KILLED
    if exited.exit_code != 0 and not exited.script_ended:
        return ExitMeaning.FAILED
    needed = state.phase is Phase.RECOVER and attempt is not None and attempt.stage is not Stage.FIRST_STEP
    return ExitMeaning.LEFT if needed else ExitMeaning.DONE


def _how(state: JobState, exited: RankExited) -> str:
    corrupted = state.protection.corrupted.get(exited.rank)
    if corrupted is not None:
        return corrupted
    return f"was killed by {_signal_name(exited.signal)}" if exited.signal else f"failed: exit code {exited.exit_code}"


def _signal_name(number: int) -> str:
    return Signals(number).name if number in list(Signals) else f"signal {number}"  # real-time ones have no names


def refusal(exited: RankExited) -> str:
    """Returns the ConfigError that the process has ended with, "" when it was something else: a thing for the user to mend."""
    found = _REFUSAL.findall(exited.error or exited.log_tail)
    return str(found[-1]) if found else ""


def is_fresh(state: JobState, rank: Rank) -> bool:
    """Returns whether the rank's process was ordered within the present recovery: its failure is no progress."""
    story = state.recovery.story
    return story is not None and rank.since >= story.began_generation


def leaver_cause(left: Leaver) -> str:
    """Returns what there is to say of a rank that has left although others wait for it."""
    where = f"in step {left.step}" if left.step != NO_STEP else "before its first step"
    return f"rank {left.rank} on {left.node_id} exited with 0 {where}: its loop was not done, and others wait for it"


def leaver_facts(state: JobState, left: Leaver, now_s: float) -> tuple[Facts, ErrorMark]:
    """Returns what the rules may ask about it: as about any process that has failed by itself."""
    mark = ErrorMark(rank=left.rank, step=left.step, exit_code=0, last_line="")
    facts = Facts(
        what=What.EXIT,
        committed=state.progress.commit_step != NO_STEP,
        again=mark in state.failures.errors,
        readings=state.failures.readings.get(left.node_id, {}),
        earlier=_earlier(state, left.node_id, now_s),
    )
    return facts, mark


def exit_facts(state: JobState, node_id: str, exited: RankExited, exit: RankExit, now_s: float) -> Facts:
    """Returns what the rules may ask about a process that has failed."""
    everywhere = {each.rank for each in [*state.failures.errors, exit.mark] if each.same_elsewhere(exit.mark)}
    playing = state.roster.playing()
    return Facts(
        what=exit.what,
        exit_code=exited.exit_code,
        signal=exited.signal,
        text=f"{exited.error}\n{exited.log_tail}",
        committed=state.progress.commit_step != NO_STEP,
        again=exit.mark in state.failures.errors,
        everywhere=1 < len(playing) <= len(everywhere) and everywhere >= {rank.rank for rank in playing},
        readings=state.failures.readings.get(node_id, {}),
        earlier=_earlier(state, node_id, now_s),
    )


def late_facts(state: JobState, node_id: str, now_s: float) -> Facts:
    """Returns what the rules may ask about a process that had to be killed."""
    return Facts(
        what=What.LATE,
        committed=state.progress.commit_step != NO_STEP,
        readings=state.failures.readings.get(node_id, {}),
        earlier=_earlier(state, node_id, now_s),
    )


def _earlier(state: JobState, node_id: str, now_s: float) -> list[tuple[What, float]]:
    return [(each.what, now_s - each.at_s) for each in state.failures.earlier if each.node_id == node_id]


def needs_holder(state: JobState, node_id: str) -> bool:
    """Returns whether the running generation cannot go on protecting its state without this node."""
    attempt = state.recovery.attempt
    awaiting_plan = attempt is not None and attempt.stage in (Stage.SPARE, Stage.STORE, Stage.QUIESCE, Stage.PLAN)
    return state.hooked and node_id in state.recovery.holders and not awaiting_plan and state.phase is not Phase.FINISH


def ranks_run(state: JobState) -> bool:
    """Returns whether rank processes of the present generation exist, or were at least ordered."""
    return state.recovery.attempt is None or state.recovery.attempt.stage is Stage.BEGIN


def may_join_yet(state: JobState, now_s: float) -> bool:
    """Returns whether the script may still be on its way to join(): no rank has joined, none has ended, and they are young."""
    ranks = state.roster.ranks
    young = now_s - max(rank.assigned_at_s for rank in ranks) <= JOIN_AWAITED_S
    return not state.hooked and young and not any(rank.done for rank in ranks)
