"""What a person's command asks the supervisor, and what it answers: the messages of status.proto.

Same names and fields as there; convert.py translates.
"""

from deadpool.proto.messages import NO_STEP, RankCalls
from deadpool.proto.messages.message import message


@message
class RankStatus:
    """`step`: in progress, of all ranks at one moment, about a heartbeat ago. `step_s`: of its last steps, in the mean; 0 before
    any. `wait_s`: of that, with a collective under way, which is when it waits for others; -1 where that is not known.
    `slow_times`: of a straggler, how many times the median of all ranks its own part of a step is; else 0.
    """

    rank: int
    pid: int
    step: int
    commit_step: int
    exposed_stall_s: float
    step_s: float = 0.0
    wait_s: float = -1.0
    rss_bytes: int = 0
    slow_times: float = 0.0


@message
class NodeStatus:
    """`role`: member | draining (its ranks will move as soon as a spare is hot for them) | spare | drained (a person wants it
    free) | faulty (alive, but not trusted with ranks) | lost.

    `heartbeat_age_s`: seconds since the last heartbeat. `hot_ranks`: those for which a stand-in waits hot on this node;
    `hot_bytes`, `hot_device_bytes`: the memory of the host, and of GPUs, that such stand-ins have to themselves.
    `gpu_busy_share`, `gpu_memory_share`: of its busiest and fullest GPU; -1 where there is none, or the extra `nvml` is missing.
    `sent_bytes_per_s` and `received_bytes_per_s` are the machine's, `replicated_bytes_per_s` its ranks'.
    """

    node_id: str
    index: int
    role: str
    host: str
    heartbeat_age_s: float
    cpu_share: float
    memory_share: float
    shm_free_bytes: int
    standins_ready: int
    ranks: tuple[RankStatus, ...] = ()
    troubles: tuple[str, ...] = ()  # what the node runs out of
    port: int = 0  # where its vault is served (TCP), at `host`
    clock_ahead_s: float = (
        0.0  # its calendar clock, of the supervisor's machine's; the way of the heartbeat makes it a little less
    )
    hot_ranks: tuple[int, ...] = ()
    gpu_busy_share: float = -1.0
    gpu_memory_share: float = -1.0
    sent_bytes_per_s: float = 0.0
    received_bytes_per_s: float = 0.0
    replicated_bytes_per_s: float = 0.0
    metrics_port: int = 0  # where its agent serves metrics, at `host`; 0: it does not
    hot_bytes: int = 0
    hot_device_bytes: int = 0
    domain: str = ""  # nodes of one fail together; "": not known
    keeps: tuple[int, ...] = ()  # the ranks of other nodes whose replicas are here, in this generation
    lost_why: str = ""  # of one that is lost
    lost_ago_s: float = 0.0


@message
class PhaseTimes:
    """Seconds of each phase of one recovery; their sum is total_s. `quiesce` lasts until survivors and joiners are prepared."""

    detect: float = 0.0
    decide: float = 0.0
    quiesce: float = 0.0
    plan: float = 0.0
    reform: float = 0.0
    restore: float = 0.0
    first_step: float = 0.0


@message
class SpentTimes:
    """Seconds of the job by what they went into; all but `node_s` sum to its wall clock.

    `assembling`: until enough nodes were there; `starting`: until the first generation runs; `productive`: new steps; `again`:
    steps done again; `stalled`: steps that waited for protection; `recovering`: from a failure to every rank's first new step,
    without `waiting` for a node; `finishing`: after the last step. `node_s`: summed over all nodes that were there, spares too.
    """

    assembling: float = 0.0
    starting: float = 0.0
    productive: float = 0.0
    again: float = 0.0
    stalled: float = 0.0
    recovering: float = 0.0
    waiting: float = 0.0
    finishing: float = 0.0
    node_s: float = 0.0

    @property
    def wall_s(self) -> float:
        return self.assembling + self.starting + self.productive + self.lost_s + self.finishing

    @property
    def lost_s(self) -> float:
        """What failures and protection have cost."""
        return self.again + self.stalled + self.recovering + self.waiting

    @property
    def goodput(self) -> float:
        """The share of the time since the first generation was started in which new steps were made; 0 before any."""
        counted = self.wall_s - self.assembling
        return self.productive / counted if counted > 0 else 0.0

    def charged(self, members: int) -> float:
        """Returns the share of the time of all nodes, spares included, that went into new steps of the job's members."""
        return min(1.0, members * self.productive / self.node_s) if self.node_s > 0 else 0.0


@message
class RecoveryRecord:
    """One recovery as status and summary show it. `failure_class`: transient | permanent | planned ("class" in the JSON).

    `ranks`: those that have failed, or had to be replaced; `moved`: those that the spares took.

    It ends with every rank's first new step; where all ranks were started from scratch, as scripts without hooks always are, when
    their processes are there. `resume_step`: NO_STEP where only the script knows. `committed_steps_lost`: of the commits that
    were reported, as each heartbeat does: those of the last second before every copy of them was lost are not counted.
    `ended_s`: in the job's time, as SpentTimes counts it. `exposed_s`: where a spare has taken ranks, from the failure until all
    had their replicas again; -1: not yet, or there was no swap. `excluded`: the ranks without which the job goes on; `returned`:
    those that it goes on with again. `groups_kept`: process groups that have stayed open; `groups_opened`: the others.
    """

    generation: int
    cause: str
    failure_class: str
    node: str
    ranks: tuple[int, ...]
    spare: str
    resume_step: int
    steps_reexecuted: int
    survivors_kept_processes: bool
    phases_s: PhaseTimes
    total_s: float
    committed_steps_lost: int
    moved: tuple[int, ...] = ()
    ended_s: float = 0.0
    exposed_s: float = -1.0
    excluded: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()
    groups_kept: int = 0
    groups_opened: int = 0


@message
class ReportedNumber:
    """What the script has reported under this name (guard.report), the newest value of its lowest rank that has."""

    name: str
    value: float


@message
class JobStatus:
    """`phase`: assemble | start | run | recover | finish | end.

    `unprotected`: "" while the state is protected, else since which step it is not, and why. `checkpoint_step`: of the newest
    complete persistent checkpoint.

    `until`: the step with which the present loop ends, 0 while that is not known. `tokens_per_s`: of all ranks, 0 where the
    script reports none. `step_times_s`: the mean time of a step between each two of the lowest rank's last heartbeats, the oldest
    first. `waiting_for`: "" unless the job stands still, else for what. `replicas`: of each unique shard, on other nodes.

    `snapshot_every`: the steps from one state that is kept safe to the next, 0 while none is; `snapshot_s`: what keeping one safe
    takes, on the slowest rank, 0 while that is not known. `steps_at_risk`: that a failure now would repeat at most.
    `domains_lost_max`: so many whole domains of nodes may be lost together; 0: there is no topology, or one has too many nodes.

    `excluded`: the ranks without which the job runs now. `another_since_step`: from this step on it is not the unbroken run, for
    ranks were excluded; NO_STEP while it is. `spares`: so many were asked for.
    """

    job_id: str
    phase: str
    generation: int
    step: int
    commit_step: int
    steps_per_s: float
    world_size: int
    hooked: bool
    exposed_stall_s: float
    nodes: tuple[NodeStatus, ...] = ()
    recoveries: tuple[RecoveryRecord, ...] = ()
    unprotected: str = ""
    checkpoint_step: int = NO_STEP
    spent_s: SpentTimes = SpentTimes()
    until: int = 0
    tokens_per_s: float = 0.0
    reported: tuple[ReportedNumber, ...] = ()
    step_times_s: tuple[float, ...] = ()
    waiting_for: str = ""
    replicas: int = 0
    snapshot_every: int = 0
    snapshot_s: float = 0.0
    steps_at_risk: int = 0
    domains_lost_max: int = 0
    excluded: tuple[int, ...] = ()
    another_since_step: int = NO_STEP
    spares: int = 0


@message
class StatusRequest:
    pass


@message
class EventsRequest:
    """`follow`: keep the stream open for events to come."""

    follow: bool


@message
class EventLine:
    """One change as one JSON object: {"time", "event", "generation", ...}; the same line as in events.jsonl."""

    json: str


@message
class InjectRequest:
    kind: str
    target: int
    step: int


@message
class DrainRequest:
    """`node`: its name, or its launch index. `undo`: it may have ranks again.

    `gone` (by name only): it is lost, as whoever manages the machines says, whatever its agent may still say.
    """

    node: str
    reason: str = ""
    undo: bool = False
    gone: bool = False


@message
class StopRequest:
    reason: str


@message
class DiagnoseRequest:
    """What do the ranks wait for? Nothing is done about it."""


@message
class Diagnosis:
    """What the ranks were in, on each node at a moment of its own. `missing`: nodes that have not answered in time.

    `why`: who is waited for, as the inquiry into a hang would judge it; "" when nobody waits.
    """

    generation: int
    ranks: tuple[RankCalls, ...] = ()
    missing: tuple[str, ...] = ()
    why: str = ""


@message
class Done:
    """`error` is "" when the request was carried out."""

    error: str = ""
