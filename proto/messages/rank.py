"""What a rank and its agent say to each other; what goes on to the supervisor is in common.py."""

from dataclasses import field

from deadpool.proto.messages.common import (
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
    StateDiffers,
    Version,
    WriteCheckpoint,
)
from deadpool.proto.messages.message import message

# ---------------------------------------------------------------- rank <-> agent only


@message
class Register:
    """First message of a rank's stream, at join(). The agent knows the process by its pid; a stand-in has no rank yet."""

    pid: int
    version: Version = NO_VERSION  # of the process; any other than the agent's is refused (proto/version.py)


@message
class Reserve:
    """Before the first step: the vault space that the rank needs. Answered by Reserved."""

    rank: int
    snapshot_bytes: int  # of one slot; two are made
    replica_bytes: int  # of one slot at each holder


@message
class Reserved:
    """`error` is "" on success, else one line with the sum needed and what is free."""

    error: str = ""


@message
class Role:
    """Who the process is from now on: answer to Register, immediately or (stand-in) when a rank needs a process.

    `environment`: torchrun's variables. `muted`: construct with muted groups and rehearse (a joiner). For the first start
    store_host/port name the generation's store; a joiner gets them with Reform. `hot`: another process plays the rank for now.
    A process that waits hot, and is `repeatable` (RankPrepared), may get another one.
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
    hot: bool = False


@message
class InjectFailure:
    """An injected failure whose hand is the trainer's own: the rank carries it out in the step under way."""

    kind: str


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
    | DrillReady
    | RankReopened
)

RankOrder = Role | Reserved | Quiesce | Reform | Release | InjectFailure | WriteCheckpoint | DrillOver | BeginLoop
