"""What the core wants done. Imperative; `cause` names the event (id and kind) or the deadline that led to it."""

from dataclasses import dataclass

from deadpool.proto.messages import Order
from deadpool.proto.messages.message import message

Value = str | int | float | bool | tuple[int, ...] | tuple[str, ...] | dict[str, float]


@message
class SendOrder:
    """`number`: of the job's orders (session.py); 0 for Welcome."""

    cause: str
    node_id: str
    order: Order
    number: int = 0


@message
class SendToAll:
    """For every agent whose conversation began before it (AgentSession.since < `number`): the same order with the same number."""

    cause: str
    order: Order
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One change, for events.jsonl and whoever follows the events."""

    cause: str
    event: str
    generation: int
    fields: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answers the request that came in as event `event_id`; "" when it was carried out."""

    cause: str
    event_id: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """The job's end is decided; agents are being stopped. `root_cause` is "" unless the job failed: shown first."""

    cause: str
    exit_code: int
    root_cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quit:
    """Every agent has stopped or is given up: the supervisor exits."""

    cause: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSelf:
    """An injected failure: SIGKILL for the supervisor itself."""

    cause: str


Command = SendOrder | SendToAll | Note | Answer | EndJob | Quit | KillSelf
