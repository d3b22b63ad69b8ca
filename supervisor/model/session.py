"""The conversation with each agent, numbered both ways, so that it outlives its connections and the supervisor's processes.

Orders to a node are numbered by the core; replaying the journal gives the same orders the same numbers. An agent that comes back
says which of them it has had, and gets the rest; Welcome tells it which of its messages were acted on, and it says the rest
again. Nothing is lost, nothing is obeyed twice, whatever the orders are.

An agent whose node was given up begins a new conversation when it comes back. It has a number, which Welcome tells and Hello
repeats: the agent may not have had that Welcome when this supervisor dies. Over JobState.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deadpool.proto.messages import Hello, Order, Welcome
from deadpool.supervisor.model.commands import SendOrder
from deadpool.supervisor.model.events import FromAgent, SupervisorStarted

if TYPE_CHECKING:
    from deadpool.supervisor.model.membership import Node
    from deadpool.supervisor.model.state import JobState

RETURN_S = 2.0  # for the agents to come back to a new supervisor: its deadlines start to run only then


@dataclass(slots=True, kw_only=True)
class AgentSession:
    """`life`: what tells this agent from a later one of its node. `unobeyed`: orders that it is not known to have had.

    `conversation`: its number; `before`: of the one that the agent was in when this one began, in that generation of the job.
    """

    life: tuple[str, int, int, int]
    conversation: int
    before: int
    generation: int
    sent: int = 0
    heard: int = 0
    unobeyed: list[tuple[int, Order]] = field(default_factory=list)

    @property
    def incarnation(self) -> int:
        return self.life[3]

    @classmethod
    def begin(cls, hello: Hello, conversation: int, generation: int) -> "AgentSession":
        return cls(life=_life(hello), conversation=conversation, before=hello.conversation, generation=generation)

    def number(self, order: Order) -> int:
        """Returns the number of this order; 0 for Welcome, which every Hello gets."""
        if isinstance(order, Welcome):
            return 0
        self.sent += 1
        self.unobeyed.append((self.sent, order))
        return self.sent

    def obeyed(self, number: int) -> None:
        while self.unobeyed and self.unobeyed[0][0] <= number:
            del self.unobeyed[0]


def is_new(state: "JobState", event: FromAgent) -> bool:
    """Returns whether this message was not acted on before; the unnumbered ones (Hello, heartbeats) are new each time."""
    node = state.roster.nodes.get(event.node_id)
    if event.number == 0 or node is None:
        return True
    if event.number <= node.session.heard:
        return False
    node.session.heard = event.number
    return True


def goes_on(node: "Node", hello: Hello) -> bool:
    """Returns whether this is the agent that was never given up, on a new connection."""
    session = node.session
    return node.live and session.life == _life(hello) and hello.conversation in (session.conversation, session.before)


def welcome(state: "JobState", node: "Node") -> None:
    """A conversation begins: the agent forgets what it had obeyed before, and what it ran for an older generation."""
    session = node.session
    order = Welcome(
        config_json=state.config_json, generation=session.generation, term=state.term, conversation=session.conversation
    )
    state.send(node.node_id, order)


def resume(state: "JobState", node: "Node", hello: Hello, *, now_s: float) -> None:
    """The agent is back; what has happened meanwhile reaches both sides."""
    session = node.session
    state.note("agent_back", node=node.node_id)
    if hello.conversation != session.conversation:  # our Welcome, and all after it, was lost with the supervisor before
        welcome(state, node)
        _say_again(state, node)
        return
    behind = hello.obeyed > session.sent or hello.generation > state.generation
    order = Welcome(
        config_json=state.config_json,
        generation=hello.generation,
        term=state.term,
        resumed=True,
        heard=session.heard,
        conversation=session.conversation,
    )
    state.send(node.node_id, order)
    if behind and state.exit_code is None:
        reason = (
            f"the journal is behind the job: {node.node_id} has obeyed order {hello.obeyed} of generation {hello.generation}, "
            f"the journal knows {session.sent} and {state.generation}"
        )
        session.sent, session.unobeyed = max(session.sent, hello.obeyed), []
        state.end(1, reason, now_s=now_s)
        return
    session.obeyed(hello.obeyed)
    _say_again(state, node)


def _say_again(state: "JobState", node: "Node") -> None:
    for number, order in node.session.unobeyed:
        state.outbox.append(SendOrder(cause=state.cause, node_id=node.node_id, order=order, number=number))


def supervisor_started(state: "JobState", event: SupervisorStarted) -> None:
    """From here on this term gives the orders. While there was no supervisor nobody could answer one: deadlines move."""
    first, state.term = state.term == 0, event.term
    if first:
        return
    state.note("supervisor_started", term=event.term)
    later_s = event.away_s + RETURN_S
    state.end_deadline_s += later_s
    if state.assembled_s is not None:
        state.assembled_s += later_s
    state.exit_expected_until_s += later_s
    if state.broken_collective is not None:
        state.broken_collective = replace(state.broken_collective, deadline_s=state.broken_collective.deadline_s + later_s)
    if state.attempt is not None:
        state.attempt.began_s += later_s
        state.attempt.kill_deadline_s += later_s
    for rank in state.roster.ranks:
        rank.assigned_at_s += later_s
        if rank.joined_s is not None:
            rank.joined_s += later_s
        if rank.stopped_s is not None:
            rank.stopped_s += later_s


def _life(hello: Hello) -> tuple[str, int, int, int]:
    return hello.host, hello.port, hello.pid, hello.incarnation
