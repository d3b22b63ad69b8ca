"""What the core hears: the agents' messages and what the shell itself noticed. Past tense; commands repeat an event's id."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from deadpool.proto.messages import AgentMessage
from deadpool.proto.messages.message import message as declared


@declared
class FromAgent:
    """A message on the newest stream of this node's agent (older streams' messages never get here).

    `number`: the agent's own, 0 for those that need none (session.py). `wire`: the message as it came, if it is still known.
    """

    event_id: int
    node_id: str
    message: AgentMessage
    number: int = 0
    wire: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesLost:
    """Agents' streams closed, or nothing was heard of them for heartbeat_timeout_s. `lost`: those found together, and why."""

    event_id: int
    lost: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsStalled:
    """No rank's step has advanced for so long. `sure`: longer than the user allows, not only longer than was learned."""

    event_id: int
    generation: int
    stalled_s: float
    sure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerJudged:
    """The rank, on that node, takes longer than the others for its own part of a step; or (`over`) does so no more.

    Seconds are of a step, without what it waits for others: its own, and the median of all ranks.
    """

    event_id: int
    generation: int
    rank: int
    node: str
    own_s: float
    median_s: float
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A person or a signal wants the job to end. `exit_code`: 143 for SIGTERM and `deadpool stop`, 130 for Ctrl-C."""

    event_id: int
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectRequested:
    """`deadpool inject`; answered by Answer."""

    event_id: int
    kind: str
    target: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """`deadpool drain`: the node of this name, or launch index, is to be free of ranks; or no longer. Answered by Answer."""

    event_id: int
    node: str
    reason: str
    undo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """SIGUSR1 to the launcher: the job writes a persistent checkpoint and goes on."""

    event_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStarted:
    """The first event of each term. `away_s`: since the last line of the journal; 0 for the job's first supervisor."""

    event_id: int
    term: int
    away_s: float


Event = (
    FromAgent
    | NodesLost
    | StepsStalled
    | StragglerJudged
    | StopRequested
    | InjectRequested
    | DrainRequested
    | CheckpointRequested
    | SupervisorStarted
)


def lost_together(events: Iterable[Event]) -> list[Event]:
    """Returns the events with losses that follow each other as one: they lead to one generation, not to one each."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, NodesLost) and isinstance(last, NodesLost):
            found[-1] = replace(last, lost=last.lost | event.lost)
        else:
            found.append(event)
    return found
