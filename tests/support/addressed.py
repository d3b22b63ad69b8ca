"""A core's commands with one for each agent, for tests and the simulation: who an order for everybody is for."""

from collections.abc import Iterable

from deadpool.supervisor.model.commands import Command, SendOrder, SendToAll
from deadpool.supervisor.model.state import JobState


def addressed(commands: Iterable[Command], state: JobState) -> list[Command]:
    """Returns them with an order for everybody as one for each agent that it is for, by launch index."""
    found: list[Command] = []
    for command in commands:
        if isinstance(command, SendToAll):
            found += [
                SendOrder(cause=command.cause, node_id=node.node_id, order=command.order, number=command.number)
                for node in state.roster.live()
                if node.session.since < command.number
            ]
        else:
            found.append(command)
    return found
