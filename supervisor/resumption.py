"""An agent comes back to its supervisor, or to the next one: the conversation goes on where it was. Over JobState."""

from dataclasses import replace

from deadpool.proto.messages import Hello, Welcome
from deadpool.supervisor.model.commands import SendOrder
from deadpool.supervisor.model.events import SupervisorStarted
from deadpool.supervisor.model.membership import Node
from deadpool.supervisor.model.state import JobState

REHOME_S = 2.0  # for those behind a relay that is gone, which they may hear late and wait for, to come back; then silence counts
_LOST_MAX = 1 << 32  # orders of which a lost journal knew: what follows has a number that no agent has seen
RETURN_S = 2.0  # for the agents to come back to a new supervisor: its deadlines start to run only then


def return_s(nodes: int, *, relay_above: int) -> float:
    """Returns how long so many nodes have to come back to a new supervisor, before their silence counts."""
    return RETURN_S + (REHOME_S if nodes > relay_above else 0.0)


def welcome(state: JobState, node: Node) -> None:
    """A conversation begins: the agent forgets what it had obeyed before, and what it ran for an older generation."""
    session = node.session
    order = Welcome(
        config_json=state.config_json, generation=session.generation, term=state.term, conversation=session.conversation
    )
    state.send(node.node_id, order)


def resume(state: JobState, node: Node, hello: Hello, *, now_s: float) -> None:
    """The agent is back; what has happened meanwhile reaches both sides."""
    session = node.session
    if not hello.moves:
        state.note("agent_back", node=node.node_id)
    if hello.conversation != session.conversation:  # our Welcome, and all after it, was lost with the supervisor before
        welcome(state, node)
        _say_again(state, node)
        return
    sent = max(session.sent, state.orders.to_all_newest)
    behind = hello.obeyed > sent or hello.generation > state.generation
    order = Welcome(
        config_json=state.config_json,
        generation=hello.generation,
        term=state.term,
        resumed=True,
        heard=session.heard,
        conversation=session.conversation,
    )
    state.send(node.node_id, order)
    session.obeyed(hello.obeyed)
    if behind and state.ending.exit_code is None:
        reason = (
            f"the journal is behind the job: {node.node_id} has obeyed order {hello.obeyed} of generation {hello.generation}, "
            f"the journal knows {sent} and {state.generation}"
        )
        state.orders.newest += _LOST_MAX
        state.end(1, reason, now_s=now_s)
        return
    _say_again(state, node)


def _say_again(state: JobState, node: Node) -> None:
    for number, order in node.session.missing(state.orders.to_all):
        state.outbox.append(SendOrder(cause=state.cause, node_id=node.node_id, order=order, number=number))


def supervisor_started(state: JobState, event: SupervisorStarted) -> None:
    """From here on this term gives the orders. While there was no supervisor nobody could answer one: deadlines move."""
    first, state.term = state.term == 0, event.term
    if first:
        return
    state.note("supervisor_started", term=event.term)
    later_s = event.away_s + RETURN_S
    state.ending.deadline_s += later_s
    if state.progress.assembled_s is not None:
        state.progress.assembled_s += later_s
    state.failures.exits_expected = {rank: until_s + later_s for rank, until_s in state.failures.exits_expected.items()}
    if state.failures.broken_collective is not None:
        state.failures.broken_collective = replace(
            state.failures.broken_collective, deadline_s=state.failures.broken_collective.deadline_s + later_s
        )
    if state.recovery.attempt is not None:
        state.recovery.attempt.began_s += later_s
        state.recovery.attempt.kill_deadline_s += later_s
    for hot in (*state.recovery.hot.values(), *state.recovery.hot_members.values()):
        hot.later(later_s)
    for node in state.roster.nodes.values():
        node.lost_s += later_s
    for rank in state.roster.ranks:
        rank.assigned_at_s += later_s
        if rank.joined_s is not None:
            rank.joined_s += later_s
        if rank.stopped_s is not None:
            rank.stopped_s += later_s
