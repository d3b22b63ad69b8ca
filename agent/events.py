"""What the agent's core hears (past tense) and what it wants done (imperative).

`process` is the agent's own number for a process that plays a rank or waits for one; it exists before the pid does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deadpool.proto.call_record import Head
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import AgentMessage, Endpoint, Order, RankMessage, RankOrder

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderReceived:
    order: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessForked:
    process: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRegistered:
    """The process is in join(). `pid`: as it says; a wrapper's child where the command is a wrapper."""

    process: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpoke:
    process: int
    message: RankMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """`step`, `commit_step`, `yielded`, `script_ended`: from the call record of the rank that it played, if it had one."""

    process: int
    exit_code: int
    signal: int
    error: str
    log_tail: str
    step: int
    commit_step: int
    yielded: int = -1
    script_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServed:
    """`error`: "" or why there is no store."""

    generation: int
    port: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefused:
    """No process of this job can run on this node; the reason is the user's to mend."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsRead:
    """The heads of the call records of this node's ranks, while an injection waits for its moment."""

    heads: Mapping[int, Head]
    now_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """A signal, or the parent's death."""

    grace_s: float


Event = (
    OrderReceived
    | ProcessForked
    | ProcessRegistered
    | RankSpoke
    | ProcessExited
    | StoreServed
    | LaunchRefused
    | HeadsRead
    | ShutdownRequested
)

# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """The job's configuration is known: the warm process may start. Once."""

    config: JobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class UseEdges:
    """This node's ranks have their replicas at these holders from this generation on."""

    generation: int
    holders: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProcess:
    """`rank`: None for a stand-in. `environment`: what makes it that rank, or a stand-in."""

    process: int
    rank: int | None
    generation: int
    environment: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStore:
    """The process that serves stores is to be there when the next generation asks this node for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameProcess:
    """The stand-in plays this rank from now on."""

    process: int
    rank: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    """SIGKILL, with all that it has started."""

    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    process: int
    order: RankOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportVault:
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectCalls:
    """Save the stacks of this node's ranks and report what they are waiting for."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStore:
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshots:
    """The ranks start from scratch: snapshots and call records of the past are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropUnusedSlots:
    """Slots that were made beforehand for ranks which no process here plays, or will, are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillNode:
    """SIGKILL for every process of this node, this one last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectHere:
    """Carry an injection out (fault_injection.py). `process`: of the rank that is its target, None when it is another's."""

    kind: str
    target: int
    process: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNode:
    """End all processes, by this signal first, remove the vault, report Stopped, exit."""

    grace_s: float
    signal_number: int


Command = (
    Configure
    | UseEdges
    | StartProcess
    | NameProcess
    | PrepareStore
    | KillProcess
    | Tell
    | Report
    | ReportVault
    | CollectCalls
    | ServeStore
    | DropSnapshots
    | DropUnusedSlots
    | KillNode
    | InjectHere
    | EndNode
)
