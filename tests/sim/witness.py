"""What a supervisor's core decides, held against the truth: its plans, its orders, what it says, who plays what."""

import itertools
from collections.abc import Callable
from typing import Any

from addressed import addressed
from sim.rank import SimRank
from sim.truth import Loop, Truth
from sim.world import World

from deadpool.proto.messages import Assign, Order, Reform, StartRanks
from deadpool.supervisor.model.commands import Command, Note, SendOrder
from deadpool.supervisor.model.membership import NodeRole, Roster
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.validate import validate
from deadpool.supervisor.report.events import misfit


class Witness:
    """Of all supervisors of a job, one after the other. `processes`: all that live. `given_up`: nodes that were ever lost."""

    def __init__(
        self, world: World, truth: Truth, loops: list[Loop], world_size: int, processes: Callable[[], list[SimRank]]
    ) -> None:
        self._world, self._truth, self._loops, self._world_size = world, truth, loops, world_size
        self._processes = processes
        self.given_up: set[str] = set()
        self._orders: dict[tuple[int, int], dict[int, Order]] = {}  # by agent and conversation, by their numbers
        self._raised: set[int] = set()  # ranks of this generation that have reported an error
        self._planned = 0  # the newest generation whose plan was looked at

    def decided(self, commands: list[Command], state: JobState) -> None:
        """What an event or the clock has led to, before anything of it is carried out."""
        try:
            validate(state)
        except AssertionError as broken:
            raise self._truth.fail(str(broken)) from broken
        plans = [each.order for each in commands if isinstance(each, SendOrder) and isinstance(each.order, Reform)]
        for plan in (each for each in plans if each.generation > self._planned):
            self._check_plan(plan, state)
        self._planned = max([self._planned, *(each.generation for each in plans)])
        for command in commands:
            if isinstance(command, Note) and command.event == "node_lost":
                self.given_up.add(str(command.fields["node"]))

    def ordered(self, order: Order) -> None:
        """The order goes out."""
        if isinstance(order, Reform):
            self._truth.goes_on_without(order.generation, order.excluded, order.resume_step)
        if isinstance(order, StartRanks):
            self._truth.resized(order.generation, order.world_size)
        if isinstance(order, StartRanks | Reform):
            copies = self._truth.groups(order.generation).copies
            copies.update((each.node_id, len(each.holders)) for each in order.placements)
        if isinstance(order, StartRanks) or (isinstance(order, Assign) and not order.hot):
            for placement in order.placements:
                self._truth.orders(placement.rank, order.generation)

    def noted(self, note: Note) -> None:
        """Somebody may read of it."""
        fields: dict[str, Any] = dict(note.fields)
        assert not misfit(note.event, fields), misfit(note.event, fields)
        self._truth.log.append(f"{self._world.now_s:9.3f} {note.cause}: g{note.generation} {note.event} {fields}")
        match note.event:
            case "recovered":
                self._truth.recovered(note.generation, {loop.until for loop in self._loops})
            case "restarted":
                self._truth.restarted(note.generation)
            case "rank_raised":
                self._raised.add(fields["rank"])
            case "generation":
                self._raised.clear()
            case "loop_body_lost":
                for rank in range(self._world_size):
                    self._truth.body_lost(rank, fields["step"])
            case "back_to_checkpoint":
                for rank, step in itertools.product(range(self._world_size), range(fields["step"])):
                    self._truth.body_lost(rank, step)
            case "vault_reports_missing" | "node_lost":  # who is stopped, or out of reach, cannot say how far it was
                node_id = fields.get("node")
                for process in self._processes():
                    if process.frozen or process.node.node_id == node_id:
                        self._truth.body_lost(process.rank, process.in_body)
                for home, rank, step in self._truth.ended_in_body.values():
                    if home == node_id:
                        self._truth.body_lost(rank, step)
            case "failure" if "SIGABRT" in fields["cause"]:
                raise self._truth.fail(f"its script had ended, and it is repeated: {fields}")
            case "failure" if "nobody died" in fields["cause"]:
                raised = [each for each in self._processes() if each.raised and each.speaks_for(note.generation)]
                told = [each.pid for each in raised if each.member is not None and each.member.rank in self._raised]
                self._truth.check(not told, f"a broken_collective is acted on, although pid {told} have reported errors")
            case "rank_exited":
                self._truth.exited(fields["rank"], fields["node"], fields["pid"])
            case _:
                pass

    def addressed(self, commands: list[Command], state: JobState) -> list[Command]:
        """Returns one for each agent. Whichever supervisor sends it, an order of the same number to an agent is the same."""
        found = addressed(commands, state)
        for command in found:
            if isinstance(command, SendOrder) and command.number:
                session = state.roster.nodes[command.node_id].session
                orders = self._orders.setdefault((session.life[2], session.conversation), {})
                order = orders.setdefault(command.number, command.order)
                if order != command.order:
                    raise self._truth.fail(f"two orders {command.number} for {command.node_id}: {order}, {command.order}")
        return found

    def is_next(self, number: int, *, pid: int, conversation: int, obeyed: int) -> bool:
        """Returns whether no order for the agent is left out between the one that it has obeyed and this one."""
        return number == min(each for each in self._orders[pid, conversation] if each > obeyed)

    def _check_plan(self, order: Reform, state: JobState) -> None:
        """As it is made: sent once more, to an agent that has come back, it may name a node that was lost meanwhile."""
        live = {node.node_id for node in state.roster.live()}
        for source in order.sources:
            nodes = {peer.endpoint.node_id for peer in source.peers} | ({source.endpoint.node_id} if source.endpoint else set())
            if not nodes <= live:
                raise self._truth.fail(f"{source} names a node that is not live")
        self._truth.check(order.generation == state.generation, "a plan of an old generation was sent")

    def placement(self, roster: Roster) -> None:
        """Seats are held by one live node each, ranks by the node of their seat."""
        seated = [seat for seat in roster.seats if seat is not None]
        self._truth.check(len(seated) == len(set(seated)), f"a node has two seats: {roster.seats}")
        wrong = [seat for seat in seated if roster.nodes[seat].role is not NodeRole.MEMBER]
        if wrong:
            raise self._truth.fail(f"{wrong} have seats, and are no members: {roster.nodes}")
        for rank in roster.ranks:
            if rank.pid:
                self._truth.plays(rank.rank, rank.node_id, rank.pid)
