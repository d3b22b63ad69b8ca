"""What supervisor, agents and ranks say to each other, as plain frozen dataclasses; what people ask is in status_messages.py.

The .proto files beside this one define the same messages under the same names and field names for the wire;
`convert.py` is the only place where both meet. Cores, tests and the simulation use these classes only.

Words: see docs/ARCHITECTURE.md. Times named `*_ns` are CLOCK_MONOTONIC nanoseconds of the machine that took them.
A message that belongs to a generation carries it; a receiver drops what is older than its own (the fence).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from signal import SIGTERM

NO_STEP = -1  # wherever a step is expected and there is none


class SlotKind(StrEnum):
    SNAPSHOT = "snapshot"  # a rank's own copy, on its own node
    REPLICA = "replica"  # the unique part of a rank's snapshot, on another node


class SourceKind(StrEnum):
    LIVE = "live"  # the process itself holds S_k, untouched
    VAULT = "vault"  # the rank's own snapshot, in the vault of the node where the rank now lives
    REPLICA = "replica"  # unique part and metadata from the replica's holder, the rest from peers' snapshots
    ELSEWHERE = "elsewhere"  # the rank's own snapshot, all of it, in the vault of a live node where the rank lived before


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one agent serves vault data (TCP, challenge-response)."""

    node_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One rank's place in a generation. `holders`: the agents that keep the rank's replicas, nearest first."""

    rank: int
    local_rank: int
    node_id: str
    node_rank: int
    holders: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A sealed slot as found in a vault: which state of which rank, written in which generation.

    `peer_sets`: for the items that the slot's replica leaves out, the sets of ranks that hold the same bytes; the rank can
    be restored from a replica only if each set has a member, on a live node, with a usable snapshot of the same step.
    """

    kind: SlotKind
    rank: int
    generation: int
    step: int
    peer_sets: tuple["RankSet", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSet:
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a rank gets S_resume_step from. `slot_generation`: the generation in which that state was stepped to (any kind).

    `endpoint`: the holder (REPLICA, ELSEWHERE). `peers`: every usable snapshot of the resume step, for the replicated items.
    """

    rank: int
    kind: SourceKind
    slot_generation: int
    endpoint: Endpoint | None = None
    peers: tuple["Peer", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    rank: int
    slot_generation: int
    endpoint: Endpoint


# ---------------------------------------------------------------- agent -> supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First message of an agent's stream. `hint`: the node's index at launch, -1 when unknown. `port`: vault data (TCP)."""

    node_id: str
    hint: int
    host: str
    port: int
    pid: int
    generation: int  # the newest generation that this agent has obeyed; 0 at first
    incarnation: int = 0  # wall clock (ns) of the agent's start: of two agents that claim one identity, the older loses
    obeyed: int = 0  # the number of the newest order that this agent has had; those after it are sent again to the same agent
    readings: tuple["Reading", ...] = ()
    conversation: int = 0  # the one that this agent is in, as Welcome numbered it; 0: it has not been welcomed yet


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """`step`: the step in progress (S_step is complete). `commit_step`: newest known commit. Stall: main-thread waits.

    `stopped`: its process is stopped, as in RankCalls.
    """

    rank: int
    pid: int
    step: int
    commit_step: int
    steps_done: int
    exposed_stall_s: float
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One health reading that failure rules may refer to, such as gpu_ecc_uncorrected; the worst of the node's devices."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Sent every heartbeat_interval. Shares are 0..1 of this machine."""

    generation: int
    ranks: tuple[RankProgress, ...] = ()
    cpu_share: float = 0.0
    memory_share: float = 0.0
    shm_free_bytes: int = 0
    standins_ready: int = 0  # processes waiting in join() for a rank
    readings: tuple[Reading, ...] = ()
    obeyed: int = 0  # as in Hello
    wall_s: float = 0.0  # what this machine's calendar clock said


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOpened:
    """The rendezvous store of a generation listens here."""

    generation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed:
    """The node cannot do what was asked for a reason that is the user's to mend (exit code 2): no torch, vault too small."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultReport:
    """What this node's vault can serve. Sent on Quiesce, and again after each of its ranks' RankPrepared."""

    generation: int
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionDue:
    """An injected failure is about to strike; the agent strikes when InjectionAck comes back."""

    injection_id: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The agent has ended all its processes and removed its vault; its stream closes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited:
    """A rank's process ended. `exit_code` as a shell would show it: 0..255, 128+signal when a signal ended it.

    `generation`: the newest one that this process had been told of (StartRanks, Assign, Quiesce), not a later one of the node.
    `signal`: its number, 0 when none. `error`: the traceback of an uncaught exception, "" when there was none.
    `log_tail`: the last lines of its log. `step`, `commit_step`: from its call record, which outlives it: the step that was in
    progress and the newest commit that it knew of.
    """

    generation: int
    rank: int
    pid: int
    exit_code: int
    signal: int = 0
    error: str = ""
    log_tail: str = ""
    step: int = NO_STEP
    commit_step: int = NO_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCall:
    """A group's calls on one rank, from its call record: how many it has entered and left, and the operation entered last."""

    group: str
    operation: str
    entered: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """`step`: in progress. `stacks`: the file with the Python stacks of all its threads, "" when there is none.

    `stopped`: its process is stopped (SIGSTOP, a debugger).
    """

    rank: int
    pid: int
    step: int
    groups: tuple[GroupCall, ...] = ()
    stacks: str = ""
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """Answer to ReportCalls: what this node's ranks are waiting for."""

    generation: int
    ranks: tuple[RankCalls, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """A persistent checkpoint of S_step is complete at `path`; or, with an error, this node's part of it could not be written.

    `seconds`: that it took; 0 for one that was there when the node came, from which the job would start afresh.
    """

    step: int
    path: str = ""
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTrouble:
    """Something that the node runs out of. `kind`: memory | shm | files | log-disk. `text`: "" when it is over."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSignalled:
    """A signal for the whole job has come to this node: Slurm sends it to all tasks. `signal`: its number."""

    signal: int


# ---------------------------------------------------------------- rank -> agent -> supervisor (forwarded as they are)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJoined:
    """The rank called deadpool.join(): the job has hooks."""

    generation: int
    rank: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBroken:
    """A collective failed in this rank while no order to quiesce had come. Evidence of a failure somewhere."""

    generation: int
    rank: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRaised:
    """An exception is on its way out of the rank's step: the process will exit with an error, however long that takes."""

    generation: int
    rank: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrepared:
    """The rank is out of its step, its groups are closed, and it waits for Reform.

    `generation`: of the Quiesce or Assign that is answered. `live_step`: NO_STEP when the process holds no usable state
    (a joiner after its rehearsal, or a state caught in the middle of optimizer.step). `live_generation`: the generation in
    which that state was stepped to (kept when it is restored). `commit_step`: the newest commit that the rank knows of.
    """

    generation: int
    rank: int
    live_generation: int
    live_step: int
    commit_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReformed:
    generation: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCopy:
    """A sealed slot whose bytes are not what their own checksums say. Its node has made it unusable: no plan names it again."""

    node_id: str
    kind: SlotKind
    rank: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A rank's replica of S_step and a peer's snapshot of it contradict each other, though each is whole by its own checksums.

    What the rank recorded of bytes that both held is not what the peer has: one of the two was corrupted before it was sealed.
    The replica cannot be restored with the help of this peer, however often that is tried.
    """

    rank: int
    generation: int
    step: int
    peer: int
    peer_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRestored:
    """`bytes_restored`: how many bytes were copied or fetched (0 for a live state). `bad_copies`: passed over for others.

    `misfits`: peers that were passed over.
    """

    generation: int
    rank: int
    step: int
    bytes_restored: int
    bad_copies: tuple[BadCopy, ...] = ()
    misfits: tuple[Misfit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailed:
    """Reform or restore did not succeed. The process is alive and prepared for a next generation."""

    generation: int
    rank: int
    phase: str  # "reform" | "restore"
    error: str
    bad_copies: tuple[BadCopy, ...] = ()
    misfits: tuple[Misfit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResumed:
    """The first step completed after a recovery: S_step exists since `at_ns`."""

    generation: int
    rank: int
    step: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinished:
    """The step loop has reached its end and S_step is committed, or cannot be; the rank waits for Release, however long."""

    generation: int
    rank: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionChanged:
    """The rank's states since S_step are not protected, for this reason; training goes on. "": from S_step on they are again."""

    generation: int
    rank: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDiffers:
    """Replicated state is not the same on all its holders: silent corruption.

    `ranks`: those that hold something else than the majority; where there is none, all whose copies contradict each other.
    `repair`: "discarded" (S_step is not committed, the job goes back to S_good_step, which was the same everywhere and which
    every vault has kept) or "none" (nobody can tell who is right, or since when).
    """

    generation: int
    rank: int  # who tells
    step: int
    ranks: tuple[int, ...]
    item: str  # one of those that differ
    repair: str
    good_step: int = NO_STEP


# ---------------------------------------------------------------- supervisor -> agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Answer to Hello. `config_json`: JobConfig (config.py). `term`: of this supervisor; agents do not obey a lower one.

    `resumed`: this agent's node was never given up, the conversation goes on where it was: orders after Hello.obeyed follow, and
    the agent says again what came after its message number `heard`. Else a new conversation begins, with this number.
    """

    config_json: str
    generation: int
    term: int = 0
    resumed: bool = False
    heard: int = 0
    conversation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStore:
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRanks:
    """Start this node's ranks afresh (any that still run are killed first). `restart_count`: for TORCHELASTIC_RESTART_COUNT."""

    generation: int
    world_size: int
    placements: tuple[Placement, ...]  # of this node only
    store_host: str
    store_port: int
    master_node_count: int
    restart_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Keep this many stand-ins waiting in join() (sent once the job is known to have hooks)."""

    standins: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """Generation `generation` begins: stop using the groups of all older ones. Every rank answers with RankPrepared."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Give each of these ranks a new process on this node: a stand-in if one waits, else a fresh one.

    It constructs with muted groups, rehearses, and answers with RankPrepared (live_step NO_STEP).
    """

    generation: int
    world_size: int
    placements: tuple[Placement, ...]
    hint_step: int  # a plausible step number for the rehearsal
    master_node_count: int
    restart_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRanks:
    """SIGKILL these ranks' processes; each is reported with RankExited as usual."""

    generation: int
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCalls:
    """No rank's step advances: say what your ranks are waiting for (CallReport), and save their stacks."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reform:
    """The plan of a recovery, for the ranks of one node. Also relayed to each rank (with its own placement and source).

    `commit_step`: the newest commit that any rank knows of (the slots of that state must stay until a newer commit).
    """

    generation: int
    resume_step: int
    commit_step: int = NO_STEP
    store_host: str
    store_port: int
    placements: tuple[Placement, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Every rank has finished: the ranks leave the step loop."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint:
    """Make one of the next commits a persistent checkpoint. For the node of rank 0, and relayed to that rank."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inject:
    """Strike when the target is in the middle of step `step` (NO_STEP: now). Targets that this node does not have are ignored."""

    injection_id: int
    kind: str  # of faults.FAULTS
    target: int  # a rank, or a node's launch index
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionAck:
    injection_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End all processes (by `signal_number`, after `grace_s` by SIGKILL), remove the vault, answer Stopped, exit.

    `exit_code`: the job's, for launchers on other machines than the supervisor's.
    """

    reason: str
    grace_s: float
    signal_number: int = SIGTERM
    exit_code: int = 0


# ---------------------------------------------------------------- rank <-> agent only


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """First message of a rank's stream, at join(). The agent knows the process by its pid; a stand-in has no rank yet."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Before the first step: the vault space that the rank needs. Answered by Reserved."""

    rank: int
    snapshot_bytes: int  # of one slot; two are made
    replica_bytes: int  # of one slot at each holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """`error` is "" on success, else one line with the sum needed and what is free."""

    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Who the process is from now on: answer to Register, at once or (stand-in) when a rank needs a process.

    `environment`: torchrun's variables. `muted`: construct with muted groups and rehearse (a joiner). For the first start
    store_host/port name the generation's store; a joiner gets them with Reform.
    """

    generation: int
    rank: int
    local_rank: int
    world_size: int
    muted: bool
    store_host: str
    store_port: int
    hint_step: int
    placement: Placement
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """An injected failure whose hand is the trainer's own: the rank carries it out in the step under way."""

    kind: str


AgentMessage = (
    Hello
    | Beat
    | StoreOpened
    | LaunchFailed
    | VaultReport
    | InjectionDue
    | Stopped
    | RankExited
    | RankJoined
    | RankBroken
    | RankPrepared
    | RankReformed
    | RankRestored
    | RankFailed
    | RankResumed
    | RankFinished
    | ProtectionChanged
    | StateDiffers
    | CheckpointWritten
    | HostTrouble
    | JobSignalled
    | CallReport
    | RankRaised
)
Order = (
    Welcome
    | OpenStore
    | StartRanks
    | WarmUp
    | Quiesce
    | Assign
    | KillRanks
    | Reform
    | Release
    | Inject
    | InjectionAck
    | Stop
    | WriteCheckpoint
    | ReportCalls
)
RankMessage = (
    Register
    | Reserve
    | LaunchFailed
    | RankJoined
    | RankBroken
    | RankPrepared
    | RankReformed
    | RankRestored
    | RankFailed
    | RankResumed
    | RankFinished
    | ProtectionChanged
    | StateDiffers
    | RankRaised
)
RankOrder = Role | Reserved | Quiesce | Reform | Release | Strike | WriteCheckpoint
