"""What more than one pair of processes say to each other: places, slots, sources, and all that a rank and its agent pass on."""

from enum import StrEnum

from deadpool.proto.messages.message import message
from deadpool.proto.step import NO_STEP as NO_STEP
from deadpool.proto.version import NO_VERSION as NO_VERSION
from deadpool.proto.version import Version as Version


class SlotKind(StrEnum):
    SNAPSHOT = "snapshot"  # a rank's own copy, on its own node
    REPLICA = "replica"  # the unique part of a rank's snapshot, on another node


class SourceKind(StrEnum):
    LIVE = "live"  # the process itself holds S_k, untouched
    VAULT = "vault"  # the rank's own snapshot, in the vault of the node where the rank now lives
    REPLICA = "replica"  # unique part and metadata from the replica's holder, the rest from peers' snapshots
    ELSEWHERE = "elsewhere"  # the rank's own snapshot, all of it, in the vault of a live node where the rank lived before
    PEER = "peer"  # a copy of another rank's state: of a rank that was excluded, and returns to those that hold all that it held


@message
class Endpoint:
    """Where one agent serves vault data (TCP, challenge-response)."""

    node_id: str
    host: str
    port: int


@message
class Placement:
    """One rank's place in a generation. `holders`: the agents that keep the rank's replicas, nearest first;
    for a joiner those that have some.

    `domain`: nodes of one fail together; "": each by itself.
    """

    rank: int
    local_rank: int
    node_id: str
    node_rank: int
    holders: tuple[Endpoint, ...] = ()
    domain: str = ""


@message
class Slot:
    """A sealed slot as found in a vault: which state of which rank, written in which generation.

    `peer_sets`: for the items that the slot's replica leaves out, the sets of ranks that hold the same bytes; the rank can
    be restored from a replica only if each set has a member, on a live node, with a usable snapshot of the same step.
    `unique`: the rank holds items besides them, which it relies on no other rank for.
    """

    kind: SlotKind
    rank: int
    generation: int
    step: int
    peer_sets: tuple["RankSet", ...] = ()
    unique: bool = False


@message
class RankSet:
    """`digest`: of all the bytes that the slot's rank holds together with these others, 63 bits (vault/together.py)."""

    ranks: tuple[int, ...]
    digest: int = 0


@message
class Source:
    """Where a rank gets S_resume_step from. `slot_generation`: the generation in which that state was stepped to (any kind).

    `endpoint`: the holder (REPLICA, ELSEWHERE). `peers`: every usable snapshot of the resume step, for the replicated items; for
    all items, any of them (PEER), and after the snapshots any replica that has all items of its rank.
    """

    rank: int
    kind: SourceKind
    slot_generation: int
    endpoint: Endpoint | None = None
    peers: tuple["Peer", ...] = ()


@message
class Peer:
    rank: int
    slot_generation: int
    endpoint: Endpoint
    kind: SlotKind = SlotKind.SNAPSHOT


@message
class LaunchFailed:
    """The node cannot do what was asked for a reason that is the user's to mend (exit code 2): no torch, vault too small."""

    generation: int
    reason: str


# ---------------------------------------------------------------- rank -> agent -> supervisor (forwarded as they are)


@message
class RankJoined:
    """The rank called deadpool.join(): the job has hooks. `hot`: it is another process' rank, this is a hot stand-in of it."""

    generation: int
    rank: int
    pid: int
    hot: bool = False


@message
class RankBroken:
    """A collective failed in this rank while no order to quiesce had come. Evidence of a failure somewhere.

    `needs`: excluded ranks, if it failed because it has no result without them.
    """

    generation: int
    rank: int
    error: str
    needs: tuple[int, ...] = ()


@message
class RankRaised:
    """The process will exit, however long that takes: an exception is on its way out of the rank's step, or its script has ended
    though the others may still need it. `error`: the exception's text; SystemExit for a script that has ended."""

    generation: int
    rank: int
    error: str


@message
class RankPrepared:
    """The rank is out of its step, its groups are closed, and it waits for Reform.

    `generation`: of the Quiesce or Assign that is answered. `live_step`: NO_STEP when the process holds no usable state
    (a joiner after its rehearsal, or a state caught in the middle of optimizer.step). `live_generation`: the generation in
    which that state was stepped to (kept when it is restored). `commit_step`: the newest commit that the rank knows of.
    `yielded`: the script has had all steps before this one, and its loop body has been through with each of them; a body in
    which a call of a broken generation returned is void, so its step does not count. NO_STEP when this process does not know (a
    joiner that has not resumed yet). `outside`: it is not out of its step: its script waits in the loop body for a call of the
    broken generation, which will not return; the process is to be replaced. `earliest`, `latest`: the script can go on from the
    states of these steps only, being in the loop that has them (`latest`: NO_STEP, not known). `hot`: as in RankJoined.
    `device_bytes`: of a joiner: what torch has taken of its GPU's memory. `repeatable`: the script's training is a function
    (deadpool.main), which can be called once more in this process, as another rank.
    """

    generation: int
    rank: int
    live_generation: int
    live_step: int
    commit_step: int
    yielded: int = NO_STEP
    outside: bool = False
    earliest: int = 0
    latest: int = NO_STEP
    hot: bool = False
    device_bytes: int = 0
    repeatable: bool = False


@message
class RankReformed:
    """`groups_kept`: how many have stayed open, of those whose first member the rank is; `groups_opened`: the others of these."""

    generation: int
    rank: int
    groups_kept: int = 0
    groups_opened: int = 0


@message
class BadCopy:
    """A sealed slot whose bytes are not what their own checksums say. Its node has made it unusable: no plan names it again."""

    node_id: str
    kind: SlotKind
    rank: int
    generation: int
    step: int


@message
class CopyConflict:
    """A rank's replica of S_step and a peer's snapshot of it contradict each other, though each is whole by its own checksums.

    What the rank recorded of bytes that both held is not what the peer has: one of the two was corrupted before it was sealed.
    The replica cannot be restored with the help of this peer, however often that is tried.
    """

    rank: int
    generation: int
    step: int
    peer: int
    peer_generation: int


@message
class RankRestored:
    """`bytes_restored`: how many bytes were copied or fetched (0 for a live state). `bad_copies`: passed over for others.

    `conflicts`: peers that were passed over.
    """

    generation: int
    rank: int
    step: int
    bytes_restored: int
    bad_copies: tuple[BadCopy, ...] = ()
    conflicts: tuple[CopyConflict, ...] = ()


@message
class RankFailed:
    """Reform or restore did not succeed. The process is alive and prepared for a next generation."""

    generation: int
    rank: int
    phase: str  # "reform" | "restore"
    error: str
    bad_copies: tuple[BadCopy, ...] = ()
    conflicts: tuple[CopyConflict, ...] = ()


@message
class RankResumed:
    """The first step completed after a recovery: S_step exists since `at_ns`."""

    generation: int
    rank: int
    step: int
    at_ns: int


@message
class RankFinished:
    """The step loop has reached its end and S_step is committed, or cannot be; the rank waits for Release, however long."""

    generation: int
    rank: int
    step: int


@message
class RankReopened:
    """The script, released from a loop that ended with S_step, has come to another one; the rank waits for BeginLoop."""

    generation: int
    rank: int
    step: int


@message
class ProtectionChanged:
    """The rank's states since S_step are not protected, for this reason; training goes on. "": from S_step on they are again.

    That is said by rank 0 also of the first state that is committed in a generation after the first one.
    """

    generation: int
    rank: int
    step: int
    reason: str


@message
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


@message
class Quiesce:
    """Generation `generation` begins: stop using the groups of all older ones. Every rank answers with RankPrepared."""

    generation: int
    reason: str


@message
class Reform:
    """The plan of a recovery, for the ranks of one node. Also relayed to each rank (with its own placement and source).

    `commit_step`: the newest commit that any rank knows of (the slots of that state must stay until a newer commit).
    `yielded`: the steps from this one on are yielded to the scripts, on all ranks alike, whatever each of them has had; those
    before it are not. At least resume_step; more when every rank has had steps that are done again, by the same ranks.
    `excluded`: the ranks without which the generation runs.
    """

    generation: int
    resume_step: int
    store_host: str
    store_port: int
    placements: tuple[Placement, ...]
    sources: tuple[Source, ...]
    commit_step: int = NO_STEP
    yielded: int = NO_STEP
    excluded: tuple[int, ...] = ()


@message
class Release:
    """Every rank has finished: the ranks leave the step loop, which ends with S_step."""

    generation: int
    step: int


@message
class BeginLoop:
    """Every rank has come to the loop that goes on from S_step: they begin it. For every member, and relayed to its ranks."""

    generation: int
    step: int


@message
class DrillReady:
    """S_step is to be drilled: the rank holds it, committed, and waits. Answered by Quiesce (a way back begins) or DrillOver."""

    generation: int
    rank: int
    step: int


@message
class DrillOver:
    """Every way back from S_step has been taken: the ranks go on. For every member, and relayed to its ranks."""

    generation: int
    step: int


@message
class WriteCheckpoint:
    """Make one of the next commits a persistent checkpoint. For the node of rank 0, and relayed to that rank."""

    generation: int
