"""What an agent and the supervisor say to each other; what they pass on for ranks is in common.py."""

from signal import SIGTERM

from deadpool.proto.messages.common import (
    NO_STEP,
    NO_VERSION,
    BeginLoop,
    DrillOver,
    DrillReady,
    LaunchFailed,
    Placement,
    ProtectionChanged,
    Quiesce,
    RankBroken,
    RankFailed,
    RankFinished,
    RankJoined,
    RankPrepared,
    RankRaised,
    RankReformed,
    RankReopened,
    RankRestored,
    RankResumed,
    Reform,
    Release,
    Slot,
    StateDiffers,
    Version,
    WriteCheckpoint,
)
from deadpool.proto.messages.message import message

# ---------------------------------------------------------------- agent -> supervisor


@message
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
    version: Version = NO_VERSION  # of the agent; any other than the supervisor's is refused (proto/version.py)
    stream: int = 0  # counts the streams that this agent has opened: a Hello that comes late, through a relay, is not the newest
    moves: bool = False  # it has a stream, and only goes to or from a relay
    domain: str = ""  # nodes of one fail together; its parts are parted by "/", the widest first; "": not known


@message
class RankProgress:
    """`step`: the step in progress (S_step is complete). `commit_step`: newest known commit. Stall: main-thread waits.

    `stopped`: its process is stopped, as in RankCalls. `step_age_s`: since the step in progress began. `stepped_s`: that its
    completed steps have taken, summed; `waited_s`: of that, with a collective under way, -1 where that is not known.
    `snapshot_every`: the steps from one state that is kept safe to the next, 0 while none is; `snapshot_s`: what keeping one
    safe takes, 0 while that is not known.
    """

    rank: int
    pid: int
    step: int
    commit_step: int
    steps_done: int
    exposed_stall_s: float
    stopped: bool = False
    step_age_s: float = 0.0
    stepped_s: float = 0.0
    waited_s: float = 0.0
    rss_bytes: int = 0
    snapshot_every: int = 0
    snapshot_s: float = 0.0


@message
class Reading:
    """One health reading that failure rules may refer to, such as gpu_ecc_uncorrected; the worst of the node's devices."""

    name: str
    value: float


@message
class Heartbeat:
    """Sent every heartbeat_interval. Shares are 0..1 of this machine.

    `until`: where the step loop ends, 0 while nobody has said so. `tokens`: that its ranks' processes have reported so far;
    `reported`: other numbers of the script, each from the node's lowest rank that has reported it. `sent_bytes`,
    `received_bytes`: of this machine since it was started, the loopback interface left out where there is another;
    `replicated_bytes`: that its ranks' processes have sent to the holders of their replicas.
    """

    generation: int
    ranks: tuple[RankProgress, ...] = ()
    cpu_share: float = 0.0
    memory_share: float = 0.0
    shm_free_bytes: int = 0
    standins_ready: int = 0  # processes waiting in join() for a rank
    readings: tuple[Reading, ...] = ()
    obeyed: int = 0  # as in Hello
    wall_s: float = 0.0  # what this machine's calendar clock said
    until: int = 0
    tokens: float = 0.0
    reported: tuple[Reading, ...] = ()
    sent_bytes: int = 0
    received_bytes: int = 0
    replicated_bytes: int = 0
    metrics_port: int = 0  # as in NodeStatus
    hot_bytes: int = 0  # of this machine's memory, what the hot stand-ins here have to themselves


@message
class StoreOpened:
    """The rendezvous store of a generation listens here."""

    generation: int
    host: str
    port: int


@message
class VaultReport:
    """What this node's vault can serve. Sent on Quiesce, and again after each of its ranks' RankPrepared."""

    generation: int
    slots: tuple[Slot, ...] = ()


@message
class InjectionDue:
    """An injection's moment has come; the agent carries it out when InjectionAck comes back."""

    injection_id: int
    at_ns: int


@message
class Stopped:
    """The agent has ended all its processes and removed its vault; its stream closes next."""


@message
class RankExited:
    """A rank's process ended. `exit_code` as a shell would show it: 0..255, 128+signal when a signal ended it.

    `generation`: the newest one that this process had heard of (StartRanks, Assign, Quiesce), not a later one of the node.
    `signal`: its number, 0 when none. `error`: the traceback of an uncaught exception, "" when there was none.
    `log_tail`: the last lines of its log. `step`, `commit_step`: from its call record, which outlives it: the step that was in
    progress and the newest commit that it knew of. `yielded`: as in RankPrepared, from there too. `script_ended`: the script had
    ended by itself, without an error, and the process was exiting when it ended (perhaps by a signal). `hot`: as in RankJoined;
    `generation` is then that in which it was ordered.
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
    yielded: int = NO_STEP
    script_ended: bool = False
    hot: bool = False


@message
class GroupCall:
    """A group's calls on one rank, from its call record: how many it has entered and left, and the operation entered last."""

    group: str
    operation: str
    entered: int
    completed: int


@message
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


@message
class CallReport:
    """Answer to ReportCalls: what this node's ranks are waiting for."""

    generation: int
    ranks: tuple[RankCalls, ...] = ()


@message
class CheckpointWritten:
    """A persistent checkpoint of S_step is complete at `path`; or, with an error, this node's part of it could not be written.

    `seconds`: that it took; 0 for one that was there when the node came, from which the job would start from scratch.
    """

    step: int
    path: str = ""
    error: str = ""
    seconds: float = 0.0


@message
class HostTrouble:
    """Something that the node runs out of. `kind`: memory | shm | files | log-disk. `text`: "" when it is over."""

    kind: str
    text: str


@message
class EdgeChanged:
    """The MPI pair from this node to a holder of its ranks' replicas has met, or is lost: then they travel by TCP for a while.

    `pids`: of the sender here and the receiver there; () when it is lost. `lost`: why, "" when it has met.
    """

    generation: int
    holder: str
    pids: tuple[int, ...] = ()
    lost: str = ""


@message
class JobSignalled:
    """A signal for the whole job has come to this node: Slurm sends it to all tasks. `signal`: its number."""

    signal: int


# ---------------------------------------------------------------- supervisor -> agent


@message
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


@message
class OpenStore:
    generation: int


@message
class StartRanks:
    """Start this node's ranks from scratch (any that still run are killed first). `restart_count`: TORCHELASTIC_RESTART_COUNT."""

    generation: int
    world_size: int
    placements: tuple[Placement, ...]  # of this node only
    store_host: str
    store_port: int
    master_node_count: int
    restart_count: int


@message
class WarmUp:
    """Keep this many stand-ins waiting in join() (sent once the job is known to have hooks)."""

    standins: int


@message
class Assign:
    """Give each of these ranks a new process on this node: a stand-in if one waits, else a fresh one.

    It constructs with muted groups, rehearses, and answers with RankPrepared (live_step NO_STEP). `hot`: others play these ranks;
    the stand-ins wait rehearsed until an order without `hot` gives them the ranks. Stand-ins that are hot for other ranks than
    these end.
    """

    generation: int
    world_size: int
    placements: tuple[Placement, ...]
    hint_step: (
        int  # to rehearse: a step that all ranks have been through, so that it holds nothing which the predecessor never met
    )
    master_node_count: int
    restart_count: int
    store_host: str = ""  # the newest store that the job has had, for MASTER_ADDR; the generation's own comes with Reform
    store_port: int = 0
    hot: bool = False


@message
class KillRanks:
    """SIGKILL these ranks' processes; each is reported with RankExited as usual."""

    generation: int
    ranks: tuple[int, ...]
    reason: str


@message
class ReportCalls:
    """No rank's step advances: say what your ranks are waiting for (CallReport), and save their stacks."""

    generation: int


@message
class Inject:
    """Due in the middle of the target's step `step` (NO_STEP: now). Targets that this node does not have are ignored."""

    injection_id: int
    kind: str  # of faults.FAULTS
    target: int  # a rank, or a node's launch index
    step: int


@message
class InjectionAck:
    injection_id: int


@message
class Stop:
    """End all processes (by `signal_number`, after `grace_s` by SIGKILL), remove the vault, answer Stopped, exit.

    `exit_code`: the job's, for launchers on other machines than the supervisor's.
    """

    reason: str
    grace_s: float
    signal_number: int = SIGTERM
    exit_code: int = 0


@message
class Route:
    """How this agent should speak to the supervisor from now on (supervisor/relays.py). Not numbered: it may be lost.

    `relays`: it opens a door, and speaks for the agents that come to it. `through`: the door (HOST:PORT) of the relay that it
    should speak through; "": it speaks for itself.
    """

    relays: bool = False
    through: str = ""


# ---------------------------------------------------------------- a relay and the supervisor, about the agents behind it


@message
class Said:
    """One message of one agent of the group, as it came. `closed`: its connection has ended; there is no message then."""

    member: int
    message: bytes = b""
    closed: bool = False


@message
class RanksSaid:
    """What ranks of this node have said within some milliseconds, in one generation; of each rank, in this order."""

    prepared: tuple[RankPrepared, ...] = ()
    reformed: tuple[RankReformed, ...] = ()
    restored: tuple[RankRestored, ...] = ()
    resumed: tuple[RankResumed, ...] = ()

    def words(self) -> tuple[RankPrepared | RankReformed | RankRestored | RankResumed, ...]:
        return *self.prepared, *self.reformed, *self.restored, *self.resumed


@message
class FromGroup:
    """`node_id`, `door`: of the relay, in its first message. `said`: in order; the first thing that a new number says is Hello.

    `living`: members whose heartbeats are not among what is said. Of each, `ages_ms`: how long ago it was heard; `steps`: the
    largest that was in progress there.
    """

    node_id: str = ""
    door: str = ""
    said: tuple[Said, ...] = ()
    living: tuple[int, ...] = ()
    ages_ms: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


@message
class Told:
    """One order for these members, encoded once (convert.order_body), and each one's numbers. `closed`: their streams end."""

    members: tuple[int, ...]
    order: bytes = b""
    numbers: tuple[int, ...] = ()
    heard: tuple[int, ...] = ()
    closed: bool = False


@message
class ToGroup:
    """`told`: in order; nothing: what the relay said was heard."""

    told: tuple[Told, ...] = ()


AgentMessage = (
    Hello
    | Heartbeat
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
    | EdgeChanged
    | CallReport
    | RankRaised
    | DrillReady
    | RankReopened
    | RanksSaid
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
    | DrillOver
    | BeginLoop
    | Route
)
