"""What the job looks like from outside: the core's state and the last heartbeats in, JobStatus out."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from deadpool.proto.messages import NO_STEP, Heartbeat, RankProgress
from deadpool.proto.messages.status import JobStatus, NodeStatus, RankStatus, ReportedNumber, SpentTimes
from deadpool.proto.vault.holdings import ranks_text
from deadpool.supervisor.model.membership import Node, NodeRole, Rank
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import Stage
from deadpool.supervisor.protection.protection import unprotected
from deadpool.supervisor.recovery.hot_nodes import hot_of
from deadpool.supervisor.report.pulse import NodePulse, Pulse

_WAITED_FOR = {
    Stage.SPARE: "a node",
    Stage.STORE: "the rendezvous store",
    Stage.BEGIN: "to start",
    Stage.QUIESCE: "out of the old generation, or built and rehearsed",
    Stage.PLAN: "what the vaults hold",
    Stage.REFORM: "to open the groups again",
    Stage.RESTORE: "to restore the state",
    Stage.FIRST_STEP: "the first step",
}


def job_status(state: JobState, pulse: Pulse, *, now_s: float) -> JobStatus:
    nodes = sorted(state.roster.nodes.values(), key=lambda node: (node.index, node.node_id))
    steps = [rank.step for rank in state.roster.playing()]
    members = [node.node_id for node in state.roster.members()]
    playing = playing_nodes(state)
    moment_s = pulse.moment_s(now_s=now_s)
    played: dict[str, list[Rank]] = {node.node_id: [] for node in nodes}
    keeps = _keeps(state)
    for rank in state.roster.playing():
        if rank.node_id in played:
            played[rank.node_id].append(rank)
    shown = tuple(
        _node_status(node, played[node.node_id], keeps.get(node.node_id, ()), state, pulse, now_s, moment_s) for node in nodes
    )
    return JobStatus(
        job_id=state.config.job_id,
        phase=state.phase,
        generation=state.generation,
        step=max(state.progress.finished_step, max(steps)),
        commit_step=state.progress.commit_step,
        steps_per_s=pulse.steps_per_s(),
        world_size=len(state.roster.ranks),
        hooked=state.hooked,
        exposed_stall_s=pulse.exposed_stall_s(),
        nodes=shown,
        recoveries=tuple(state.recovery.records),
        unprotected=unprotected(state),
        checkpoint_step=state.protection.checkpoint_step,
        spent_s=spent(state, pulse, now_s=now_s),
        until=pulse.until(playing),
        tokens_per_s=pulse.tokens_per_s(members) if state.phase is Phase.RUN else 0.0,
        reported=tuple(ReportedNumber(name=name, value=value) for name, value in sorted(pulse.reported(playing).items())),
        step_times_s=tuple(pulse.step_times_s),
        waiting_for=waiting_for(state),
        replicas=state.config.replicas,
        domains_lost_max=state.recovery.spread,
        excluded=state.roster.excluded_ranks(),
        another_since_step=state.recovery.another_since_step,
        spares=state.config.spares,
        **_keeping(members, pulse, max((rank.step_s for node in shown for rank in node.ranks), default=0.0)),
    )


def playing_nodes(state: JobState) -> list[str]:
    """Returns the nodes on which the ranks are, or were until they were lost or the job ended."""
    return list(dict.fromkeys(rank.node_id for rank in state.roster.playing() if rank.node_id))


def _keeping(members: Iterable[str], pulse: Pulse, step_s: float) -> dict[str, Any]:
    """Returns how often a state is kept safe, what that takes, and how many steps a failure repeats at most.

    `step_s`: of the slowest rank, 0 where it is not known.
    """
    ranks = [rank for each in members if each in pulse.heartbeats for rank in pulse.heartbeats[each][0].ranks]
    every = max((each.snapshot_every for each in ranks), default=0)
    taken_s = max((each.snapshot_s for each in ranks), default=0.0)
    under_way = math.ceil(taken_s / step_s) if step_s > 0 else 0  # steps until a state is committed
    return {"snapshot_every": every, "snapshot_s": taken_s, "steps_at_risk": every + max(1, under_way) if every else 0}


def waiting_for(state: JobState) -> str:
    """Returns what the job stands still for, "" while it does not."""
    roster, attempt = state.roster, state.recovery.attempt
    if state.phase is Phase.ASSEMBLE:
        here, wanted = len(roster.live()), state.config.nnodes + state.config.spares
        return f"{wanted - here} more of {wanted} nodes"
    if attempt is None:
        return ""
    if attempt.stage is Stage.SPARE:
        return f"a node for ranks {ranks_text(roster.without_node())}"
    behind: Collection[int] = attempt.behind.get(attempt.stage, ())
    if not behind:
        return f"{_WAITED_FOR[attempt.stage]}"
    return f"rank{'s' if len(behind) > 1 else ''} {ranks_text(behind)}: {_WAITED_FOR[attempt.stage]}"


def spent(state: JobState, pulse: Pulse, *, now_s: float) -> SpentTimes:
    """Returns where the job's time has gone so far."""
    nodes = state.roster.live_count
    return state.account.so_far(state.time_kind(), nodes, now_s=now_s, stalled_s=pulse.exposed_stall_s())


def _keeps(state: JobState) -> dict[str, list[int]]:
    """Returns, by node, the ranks whose replicas it keeps in this generation."""
    keeps: dict[str, list[int]] = {}
    for seat, kept_by in sorted(state.recovery.keepers.items()):
        ranks = [rank.rank for rank in state.roster.of_seat(seat)]
        for node_id in kept_by if state.hooked else ():
            keeps.setdefault(node_id, []).extend(ranks)
    return keeps


def _node_status(
    node: Node, played: Sequence[Rank], keeps: Iterable[int], state: JobState, pulse: Pulse, now_s: float, moment_s: float
) -> NodeStatus:
    heartbeat = pulse.heartbeats[node.node_id][0] if node.node_id in pulse.heartbeats else Heartbeat(generation=0)
    if node.role is NodeRole.LOST:
        heartbeat = Heartbeat(generation=heartbeat.generation)
    progress = {each.rank: each for each in heartbeat.ranks}
    later, slow = pulse.later.get(node.node_id), state.failures.stragglers
    ranks = [
        _rank_status(rank.rank, rank.pid, progress.get(rank.rank), pulse, moment_s, later, slow.get(rank.rank, 0.0))
        for rank in played
    ]
    rates = pulse.nodes.get(node.node_id, NodePulse()) if node.live else NodePulse()
    readings = {each.name: each.value for each in heartbeat.readings}
    hot = hot_of(state, node.node_id)
    return NodeStatus(
        node_id=node.node_id,
        index=node.index,
        role="draining" if node.node_id in state.recovery.swaps else node.role,
        host=node.endpoint.host,
        port=node.endpoint.port,
        heartbeat_age_s=now_s - pulse.heard_s(node.node_id) if node.node_id in pulse.heartbeats else 0.0,
        cpu_share=heartbeat.cpu_share,
        memory_share=heartbeat.memory_share,
        shm_free_bytes=heartbeat.shm_free_bytes,
        standins_ready=heartbeat.standins_ready,
        ranks=tuple(ranks),
        troubles=tuple(node.troubles.values()),
        clock_ahead_s=pulse.clocks_ahead_s.get(node.node_id, 0.0),
        hot_ranks=tuple(sorted(hot.rehearsed)) if hot is not None else (),
        gpu_busy_share=readings.get("gpu_busy_share", -1.0),
        gpu_memory_share=readings.get("gpu_memory_share", -1.0),
        sent_bytes_per_s=rates.per_s("sent_bytes"),
        received_bytes_per_s=rates.per_s("received_bytes"),
        replicated_bytes_per_s=rates.per_s("replicated_bytes"),
        metrics_port=heartbeat.metrics_port,
        hot_bytes=heartbeat.hot_bytes,
        domain=node.domain,
        keeps=tuple(keeps) if node.live else (),
        lost_why="" if node.live else node.lost_why,
        lost_ago_s=0.0 if node.live else now_s - node.lost_s,
        hot_device_bytes=sum(hot.rehearsed.values()) if hot is not None else 0,
    )


def _rank_status(
    rank: int,
    pid: int,
    progress: RankProgress | None,
    pulse: Pulse,
    moment_s: float,
    later: tuple[float, int] | None,
    slow_times: float,
) -> RankStatus:
    """Returns the rank's line; `progress` counts only if it is of the process that plays the rank now.

    `later`: (when, step) that its node has been in since then.
    """
    if progress is None or progress.pid != pid:
        return RankStatus(rank=rank, pid=pid, step=NO_STEP, commit_step=NO_STEP, exposed_stall_s=0.0)
    known = pulse.ranks.get(rank)
    step_s, wait_s = known.step_s() if known is not None else (0.0, -1.0)
    return RankStatus(
        rank=rank,
        pid=pid,
        step=known.step_at(moment_s, later) if known is not None else progress.step,
        commit_step=progress.commit_step,
        exposed_stall_s=progress.exposed_stall_s,
        step_s=step_s,
        wait_s=wait_s,
        rss_bytes=progress.rss_bytes,
        slow_times=slow_times,
    )
