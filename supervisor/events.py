"""What the core hears: the agents' messages and what the shell itself noticed. Past tense; commands repeat an event's id."""

from dataclasses import dataclass

from deadpool.proto.messages import AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class FromAgent:
    """A message on the newest stream of this node's agent (older streams' messages never get here)."""

    event_id: int
    node_id: str
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """The agent's stream closed, or nothing was heard of it for heartbeat_timeout_s."""

    event_id: int
    node_id: str
    reason: str


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


Event = FromAgent | NodeLost | StopRequested | InjectRequested
