"""What the job waits for, until when, and what follows when it has not come. Over JobState."""

import math
from typing import assert_never

from deadpool.supervisor.failures.handling import broken_collective_expired, inquiry_expired, kill_failed, late
from deadpool.supervisor.failures.hang import FLOOR_S, TIMES
from deadpool.supervisor.failures.hang_inquiry import open_inquiry
from deadpool.supervisor.model.hot import HotNode
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import RecoveryAttempt, Stage
from deadpool.supervisor.recovery import drill, hot_nodes
from deadpool.supervisor.recovery.fresh_start import start_job
from deadpool.supervisor.recovery.orders import KILL_TIMEOUT_S, kill, store_failed
from deadpool.supervisor.recovery.planning import plan_if_ready

_ASSEMBLE_GRACE_S = 2.0  # nnodes agents are there: wait this long for the spares
_TOGETHER_GRACE_S = 30.0  # all nodes are on their way: which ones become spares should not depend on who is quicker
_STORE_TIMEOUT_S = 60.0  # an agent's warm process may have to import torch before it can open a store


def deadlines(state: JobState) -> list[tuple[float, str]]:
    """Returns (when, which) for all that is awaited."""
    config, attempt = state.config, state.recovery.attempt
    found: list[tuple[float, str]] = []
    if state.phase is Phase.END:
        return [] if state.ending.over else [(state.ending.deadline_s, "stop")]
    if state.phase is Phase.ASSEMBLE and state.progress.assembled_s is not None:
        grace_s = _TOGETHER_GRACE_S if config.standalone or config.together else _ASSEMBLE_GRACE_S
        found.append((state.progress.assembled_s + grace_s, "assemble"))
    if state.failures.broken_collective is not None:
        found.append((state.failures.broken_collective.deadline_s, "broken_collective"))
    inquiry = open_inquiry(state)
    if inquiry is not None:
        found.append((inquiry.deadline_s, "inquiry"))
    if state.drill.checkpoint_deadline_s is not None:
        found.append((state.drill.checkpoint_deadline_s, "drill checkpoint"))
    getting_hot = {**state.recovery.hot, **state.recovery.hot_members}
    found += [(_hot_deadline_s(state, hot), f"hot {node_id}") for node_id, hot in getting_hot.items() if not hot.ready]
    if attempt is None:
        return found
    began_s = attempt.began_s
    if attempt.store is None and attempt.stage in (Stage.STORE, Stage.PLAN):
        found.append((began_s + _STORE_TIMEOUT_S, "store"))
    if attempt.killing:
        found.append((attempt.kill_deadline_s, "kill"))
    found += [(_stopped_deadline_s(state, rank), "stopped") for rank in _stopped(state)]
    match attempt.stage:
        case Stage.QUIESCE:
            found += [(at_s, "quiesce") for at_s in _quiesce_deadlines_s(state, attempt)]
        case Stage.PLAN:
            if attempt.owing or attempt.drained:
                found.append((began_s + config.quiesce_timeout_s, "vault report"))
        case Stage.REFORM:
            found.append((began_s + config.reform_timeout_s, "reform"))
        case Stage.RESTORE | Stage.FIRST_STEP:
            found.append((began_s + config.restore_timeout_s, attempt.stage.value))
        case Stage.SPARE | Stage.STORE | Stage.BEGIN:
            pass
        case _:
            assert_never(attempt.stage)
    return found


def _stopped(state: JobState) -> list[int]:
    """Returns the ranks that the present stage waits for, and whose processes are stopped: none of them will get there."""
    attempt = state.recovery.attempt
    assert attempt is not None
    behind = attempt.behind.get(attempt.stage, ())
    return [rank for rank in sorted(state.roster.stopped) if rank in behind and rank not in attempt.killing]


def _stopped_deadline_s(state: JobState, number: int) -> float:
    """As long as a node may be silent."""
    stopped_s = state.roster.ranks[number].stopped_s
    assert stopped_s is not None
    return stopped_s + state.config.heartbeat_timeout_s


def _quiesce_deadlines_s(state: JobState, attempt: RecoveryAttempt) -> list[float]:
    """Returns until when joiners are waited for, each, and the others: of these there may be many, and all have the same time."""
    behind, killing, joiners = attempt.behind[Stage.QUIESCE], attempt.killing, state.roster.joiners
    found = [_quiesce_deadline_s(state, rank) for rank in joiners if rank in behind and rank not in killing]
    other = next((rank for rank in behind if rank not in joiners and rank not in killing), None)
    return found if other is None else [*found, _quiesce_deadline_s(state, other)]


def _quiesce_deadline_s(state: JobState, number: int) -> float:
    rank, attempt, config = state.roster.ranks[number], state.recovery.attempt, state.config
    assert attempt is not None
    if rank.joining:
        return min(rank.assigned_at_s + config.join_timeout_s, _build_deadline_s(state, rank.joined_s))
    return attempt.began_s + config.quiesce_timeout_s


def _hot_deadline_s(state: JobState, hot: HotNode) -> float:
    builds = [_build_deadline_s(state, joined_s) for joined_s in hot.joined_s.values()]
    return min([hot.began_s + state.config.join_timeout_s, *builds])


def _build_deadline_s(state: JobState, joined_s: float | None) -> float:
    """A joiner that takes so much longer to construct and rehearse than any process of this job before hangs."""
    if joined_s is None or not state.progress.longest_build_s:
        return math.inf
    floor_s = state.config.hang_timeout_s or FLOOR_S
    return joined_s + max(floor_s, TIMES * state.progress.longest_build_s)


def expired(state: JobState, name: str, now_s: float) -> None:
    attempt = state.recovery.attempt
    if name.startswith("hot "):
        hot_nodes.failed(state, name.removeprefix("hot "), "its stand-ins have not rehearsed in time")
        return
    match name:
        case "stop":
            state.note("agents_gave_no_answer", nodes=tuple(n.node_id for n in state.roster.live() if not n.stopped))
            state.quit_if_all_stopped(gave_up=True)
            return
        case "assemble":
            start_job(state, now_s=now_s)
            return
        case "drill checkpoint":
            drill.checkpoint_missing(state, now_s)
            return
        case "broken_collective":
            broken_collective_expired(state, now_s)
            return
        case "inquiry":
            inquiry_expired(state, now_s)
            return
        case _:
            assert attempt is not None
    match name:
        case "store":
            store_failed(state)
            late(state, f"{attempt.store_node} has not opened the store within {_STORE_TIMEOUT_S:g} s", attempt.store_node, now_s)
        case "vault report":
            missing = attempt.owing | {state.recovery.drained[rank] for rank in attempt.drained}
            state.note("vault_reports_missing", nodes=tuple(sorted(missing)))
            attempt.owing.clear()
            attempt.drained.clear()
            plan_if_ready(state, attempt, now_s=now_s)
        case "quiesce":
            kill_late_ranks(state, now_s)
        case "stopped":
            stopped = {rank for rank in _stopped(state) if _stopped_deadline_s(state, rank) <= now_s}
            if attempt.stage is Stage.QUIESCE:
                kill(state, stopped, "their processes are stopped", now_s=now_s)
            else:  # they are killed as soon as the next generation waits for them
                ranks = ", ".join(map(str, sorted(stopped)))
                late(state, f"the process of rank {ranks} is stopped", state.roster.ranks[min(stopped)].node_id, now_s)
        case "kill":
            kill_failed(state, min(attempt.killing), KILL_TIMEOUT_S, now_s)
        case _:
            behind = sorted(attempt.behind[attempt.stage])
            late(state, f"{name} was not done in time by rank {', '.join(map(str, behind))}", "", now_s)


def kill_late_ranks(state: JobState, now_s: float) -> None:
    """Ranks that have not quiesced or rehearsed in time."""
    attempt = state.recovery.attempt
    assert attempt is not None
    late = attempt.behind[Stage.QUIESCE] - attempt.killing
    overdue = {rank for rank in late if _quiesce_deadline_s(state, rank) <= now_s}
    for rank in (state.roster.ranks[number] for number in overdue):
        if rank.joining and rank.joined_s is not None:  # if it was only slow: the next one has twice as long
            state.progress.build_seen(2 * (now_s - rank.joined_s) / TIMES)
    kill(state, overdue, "they have not left their step in time", now_s=now_s)
