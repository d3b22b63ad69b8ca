"""What the job looks like from outside: the core's state and the last heartbeats in, JobStatus out."""

from collections import deque
from dataclasses import dataclass, field

from deadpool.proto.messages import NO_STEP, Heartbeat, RankProgress
from deadpool.proto.messages.status import JobStatus, NodeStatus, RankStatus, SpentTimes
from deadpool.supervisor.model.membership import Node, NodeRole
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.protection.protection import unprotected

_RATE_WINDOW_S = 5.0


@dataclass(slots=True)
class Pulse:
    """The last heartbeat of each node, and what only a series of them tells: the step rate, the stall of all processes so far."""

    heartbeats: dict[str, tuple[Heartbeat, float]] = field(default_factory=dict)
    stalls_s: dict[tuple[int, int], float] = field(default_factory=dict)  # (rank, pid) -> the main thread's waits
    clocks_ahead_s: dict[str, float] = field(default_factory=dict)
    _steps: deque[tuple[float, int]] = field(default_factory=deque)  # (time, newest step of any rank)

    def heard(self, node_id: str, heartbeat: Heartbeat, *, now_s: float, wall_s: float = 0.0) -> None:
        """`wall_s`: what our own calendar clock says; 0 for a heartbeat of the past."""
        self.heartbeats[node_id] = (heartbeat, now_s)
        if wall_s and heartbeat.wall_s:
            self.clocks_ahead_s[node_id] = heartbeat.wall_s - wall_s
        for progress in heartbeat.ranks:
            self.stalls_s[progress.rank, progress.pid] = progress.exposed_stall_s
        step = max((progress.step for progress in heartbeat.ranks), default=NO_STEP)
        if step == NO_STEP:
            return
        self._steps.append((now_s, step))
        while now_s - self._steps[0][0] > _RATE_WINDOW_S:
            self._steps.popleft()

    def steps_per_s(self) -> float:
        """Returns the rate over the last seconds; 0 when steps are being repeated."""
        if len(self._steps) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        return max(0.0, (last - first) / (last_s - first_s)) if last_s > first_s else 0.0

    def exposed_stall_s(self) -> float:
        """Returns the wait of the rank that has waited longest, over all processes that have played it."""
        by_rank: dict[int, float] = {}
        for (rank, _), stall_s in self.stalls_s.items():
            by_rank[rank] = by_rank.get(rank, 0.0) + stall_s
        return max(by_rank.values(), default=0.0)


def job_status(state: JobState, pulse: Pulse, *, now_s: float) -> JobStatus:
    nodes = sorted(state.roster.nodes.values(), key=lambda node: (node.index, node.node_id))
    steps = [rank.step for rank in state.roster.ranks]
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
        nodes=tuple(_node_status(node, state, pulse, now_s) for node in nodes),
        recoveries=tuple(state.recovery.records),
        unprotected=unprotected(state),
        checkpoint_step=state.protection.checkpoint_step,
        spent_s=spent(state, pulse, now_s=now_s),
    )


def spent(state: JobState, pulse: Pulse, *, now_s: float) -> SpentTimes:
    """Returns where the job's time has gone so far."""
    nodes = len(state.roster.live())
    return state.account.so_far(state.time_kind(), nodes, now_s=now_s, stalled_s=pulse.exposed_stall_s())


def _node_status(node: Node, state: JobState, pulse: Pulse, now_s: float) -> NodeStatus:
    heartbeat, heard_s = pulse.heartbeats.get(node.node_id, (Heartbeat(generation=0), now_s))
    if node.role is NodeRole.LOST:
        heartbeat = Heartbeat(generation=heartbeat.generation)
    progress = {each.rank: each for each in heartbeat.ranks}
    ranks = [_rank_status(rank.rank, rank.pid, progress.get(rank.rank)) for rank in state.roster.of_node(node.node_id)]
    hot = state.recovery.hot.get(node.node_id)
    return NodeStatus(
        node_id=node.node_id,
        index=node.index,
        role="draining" if node.node_id in state.recovery.swaps else node.role,
        host=node.endpoint.host,
        port=node.endpoint.port,
        heartbeat_age_s=now_s - heard_s,
        cpu_share=heartbeat.cpu_share,
        memory_share=heartbeat.memory_share,
        shm_free_bytes=heartbeat.shm_free_bytes,
        standins_ready=heartbeat.standins_ready,
        ranks=tuple(ranks),
        troubles=tuple(node.troubles.values()),
        clock_ahead_s=pulse.clocks_ahead_s.get(node.node_id, 0.0),
        hot_ranks=tuple(sorted(hot.rehearsed)) if hot is not None else (),
    )


def _rank_status(rank: int, pid: int, progress: RankProgress | None) -> RankStatus:
    """Returns the rank's line; `progress` counts only if it is of the process that plays the rank now."""
    if progress is None or progress.pid != pid:
        return RankStatus(rank=rank, pid=pid, step=NO_STEP, commit_step=NO_STEP, exposed_stall_s=0.0)
    return RankStatus(
        rank=rank, pid=pid, step=progress.step, commit_step=progress.commit_step, exposed_stall_s=progress.exposed_stall_s
    )
