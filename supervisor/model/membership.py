"""Who is in the job: nodes and their roles, which node sits in which seat, and where each rank lives.

A seat is a node rank: rank r lives on the node in seat r // nproc_per_node. A node that leaves vacates it. A spare takes it, or
it is excluded: the job goes on without its ranks.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from deadpool.proto.config import JobConfig
from deadpool.proto.messages import NO_STEP, Endpoint, Hello, Placement
from deadpool.supervisor.model.placing import Placing, place_replicas, spread_of
from deadpool.supervisor.model.session import AgentSession


class NodeRole(StrEnum):
    MEMBER = "member"
    SPARE = "spare"
    DRAINED = "drained"  # alive, serves its vault; a person or Slurm wants it free of ranks
    FAULTY = "faulty"  # alive, serves its vault, but gets no ranks while there are others: its processes failed too often
    LOST = "lost"


@dataclass(slots=True, kw_only=True)
class Node:
    """`index`: at launch, or the next free one for a node that came without. `stopped`: it said Stopped.

    `lost_why`, `lost_s`: of one that was lost, and since when.
    `drained`: as long as this agent lives, or the node is asked back, also when its connection was lost meanwhile. `ready`: of a
    spare, whether as many stand-ins wait as it may have to play ranks; None: never so far. `domain`: nodes of one fail together.
    `gave_up`: of a faulty one, that it has had ranks, which are others' now.
    """

    node_id: str
    index: int
    endpoint: Endpoint
    role: NodeRole
    session: AgentSession
    stopped: bool = False
    drained: bool = False
    ready: bool | None = None
    gave_up: bool = False
    domain: str = ""
    lost_why: str = ""
    lost_s: float = 0.0
    troubles: dict[str, str] = field(default_factory=dict)  # kind -> what the node runs out of

    @property
    def live(self) -> bool:
        return self.role is not NodeRole.LOST


@dataclass(slots=True, kw_only=True)
class Rank:
    """A rank and the process that plays it.

    `since`: the generation in which this process was given the rank: what an older process says is not about this one.
    `present`: the process exists as far as is known. `joining`: it has not been prepared once. `done`: it exited with 0.
    `finished`: it is at the end of its step loop, and has not come to another one; `reopened`: it has.
    `joined_s`: when it had come as far as `join()`; None once it has made, or rehearsed, its first steps.
    `stopped_s`: since when it is known to be stopped (SIGSTOP), None while it is not.
    `yielded`: so far at least its script has had the steps (RankPrepared); `yielded_known`: so far and no further.
    `stale`: it was excluded, and has made no step since: its state is that of the others.
    """

    rank: int
    node_id: str = ""
    pid: int = 0
    since: int = 0
    present: bool = False
    joining: bool = False
    assigned_at_s: float = 0.0
    joined_s: float | None = None
    finished: bool = False
    reopened: bool = False
    done: bool = False
    step: int = NO_STEP
    commit_step: int = NO_STEP
    stopped_s: float | None = None
    yielded: int = NO_STEP
    yielded_known: bool = False
    stale: bool = False


@dataclass(slots=True, kw_only=True)
class Roster:
    """`seats[node_rank]`: the node that plays it, None when vacant. `excluded`: vacant ones without which the job goes on.

    `retired`: (node, pid) of processes that were replaced.

    `live_count`: nodes whose agents are connected. `named_by`: launch index -> node. `joiners`, `stopped`, `absent`: the
    ranks that are joining, whose processes are stopped, and that have none, so that nobody has to look for them among all.
    """

    nproc_per_node: int
    seats: list[str | None]
    ranks: list[Rank]
    nodes: dict[str, Node] = field(default_factory=dict)
    retired: set[tuple[str, int]] = field(default_factory=set)
    conversations: int = 0  # with agents, that have begun
    live_count: int = 0
    named_by: dict[int, str] = field(default_factory=dict)
    joiners: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    excluded: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)

    @classmethod
    def empty(cls, *, nnodes: int, nproc_per_node: int) -> "Roster":
        ranks = [Rank(rank=rank) for rank in range(nnodes * nproc_per_node)]
        return cls(nproc_per_node=nproc_per_node, seats=[None] * nnodes, ranks=ranks, absent=set(range(len(ranks))))

    def resize(self, nnodes: int) -> None:
        """The job goes on with so many seats, all ranks anew: members keep their order, and move up into vacant ones."""
        members = [node.node_id for node in self.members()]
        assert len(members) <= nnodes
        for rank in self.ranks:
            self.retire(rank)
        self.seats, self.excluded = [None] * nnodes, set()
        self.ranks = [Rank(rank=rank) for rank in range(nnodes * self.nproc_per_node)]
        self.absent = set(range(len(self.ranks)))
        for node_rank, node_id in enumerate(members):
            self.take_seat(node_rank, node_id)

    # ------------------------------------------------------------ nodes

    def add(self, hello: Hello, generation: int = 0, topology: Mapping[str, str] | None = None, *, orders_sent: int = 0) -> Node:
        """Returns the new node, a spare for now; its launch index is kept when it has been here before.

        An agent that was drained, and was lost to us for a while, is so still. `topology`: domains, by node or host; where
        it says nothing, what the agent says counts. `orders_sent`: by the job, until now.
        """
        index = hello.hint
        before = self.nodes.get(hello.node_id)
        if index < 0 or self.named_by.get(index, hello.node_id) != hello.node_id:
            index = before.index if before else max(self.named_by, default=-1) + 1
        if before is not None:
            del self.named_by[before.index]
        self.named_by[index] = hello.node_id
        endpoint = Endpoint(node_id=hello.node_id, host=hello.host, port=hello.port)
        self.conversations += 1
        session = AgentSession.begin(hello, self.conversations, generation, orders_sent)
        domain = (topology or {}).get(hello.node_id) or (topology or {}).get(hello.host) or hello.domain
        node = Node(node_id=hello.node_id, index=index, endpoint=endpoint, role=NodeRole.SPARE, session=session, domain=domain)
        if before is not None and before.drained and before.session.life == node.session.life:
            node.role, node.drained = NodeRole.DRAINED, True
        self.nodes[hello.node_id] = node
        self.live_count += before is None or not before.live
        return node

    def live(self) -> list[Node]:
        """Returns the nodes whose agents are connected, by launch index."""
        return sorted((node for node in self.nodes.values() if node.live), key=lambda node: node.index)

    def members(self) -> list[Node]:
        """Returns the nodes in the seats, in seat order, vacant seats left out."""
        return [self.nodes[seat] for seat in self.seats if seat is not None]

    def spares(self) -> list[Node]:
        return sorted((node for node in self.nodes.values() if node.role is NodeRole.SPARE), key=lambda node: node.index)

    def short_of_processes(self) -> list[str]:
        """Returns the members, in seat order, of whose ranks some have no process."""
        seats = dict.fromkeys(rank // self.nproc_per_node for rank in sorted(self.absent))
        return [node_id for seat in seats if (node_id := self.seats[seat]) is not None]

    def vacancies(self) -> list[int]:
        """Returns the seats for which a node is wanted before the job can go on."""
        if None not in self.seats:
            return []
        return [node_rank for node_rank, seat in enumerate(self.seats) if seat is None and node_rank not in self.excluded]

    def without_node(self) -> tuple[int, ...]:
        """Returns the ranks for which a node is wanted."""
        return tuple(rank.rank for seat in self.vacancies() for rank in self.of_seat(seat))

    def exclude(self, node_rank: int) -> None:
        """The job is to go on without the ranks of this vacant seat."""
        assert self.seats[node_rank] is None
        self.excluded.add(node_rank)

    def include_all(self) -> None:
        """All ranks begin anew, none without the others."""
        self.excluded.clear()
        for rank in self.ranks:
            rank.stale = False

    def take_seat(self, node_rank: int, node_id: str) -> None:
        self.seats[node_rank] = node_id
        self.nodes[node_id].role = NodeRole.MEMBER
        for rank in self.of_seat(node_rank):
            rank.node_id = node_id

    def vacate(self, node_id: str, role: NodeRole) -> tuple[int, ...]:
        """The node gives up its seat, if it has one; returns the ranks that lose their process with it."""
        self.live_count -= role is NodeRole.LOST and self.nodes[node_id].live
        self.nodes[node_id].role = role
        self.nodes[node_id].drained |= role is NodeRole.DRAINED
        self.nodes[node_id].gave_up = role is NodeRole.FAULTY and node_id in self.seats
        if node_id not in self.seats:
            return ()
        node_rank = self.seats.index(node_id)
        self.seats[node_rank] = None
        leave = self.gone if role is NodeRole.LOST else self.retire
        for rank in self.of_seat(node_rank):
            leave(rank)
        return tuple(rank.rank for rank in self.of_seat(node_rank))

    # ------------------------------------------------------------ ranks

    def playing(self) -> list[Rank]:
        """Returns the ranks with which the job goes on: all that are not excluded."""
        if not self.excluded:
            return self.ranks
        return [rank for rank in self.ranks if rank.rank // self.nproc_per_node not in self.excluded]

    def excluded_ranks(self) -> tuple[int, ...]:
        return tuple(rank.rank for seat in sorted(self.excluded) for rank in self.of_seat(seat))

    def of_seat(self, node_rank: int) -> list[Rank]:
        return self.ranks[node_rank * self.nproc_per_node : (node_rank + 1) * self.nproc_per_node]

    def of_node(self, node_id: str) -> list[Rank]:
        return self.of_seat(self.seats.index(node_id)) if node_id in self.seats else []

    def retire(self, rank: Rank) -> None:
        """The process that plays the rank is about to be killed: nothing that it says counts any more."""
        if rank.pid and rank.present:
            self.retired.add((rank.node_id, rank.pid))
        self.gone(rank)

    def gone(self, rank: Rank) -> None:
        """The rank has no process."""
        rank.pid, rank.present, rank.done = 0, False, False
        self.absent.add(rank.rank)
        rank.finished = rank.reopened = False
        rank.joined_s = None
        self.joins_no_more(rank)
        self.stop_seen(rank, None)

    def joins_no_more(self, rank: Rank) -> None:
        """The rank's process is prepared, or has ended: nobody waits any more for it to be so the first time."""
        rank.joining = False
        self.joiners.discard(rank.rank)

    def stop_seen(self, rank: Rank, at_s: float | None) -> None:
        """The rank's process is known to be stopped since then; None: it is not."""
        rank.stopped_s = at_s
        (self.stopped.discard if at_s is None else self.stopped.add)(rank.rank)

    def give_process(self, rank: Rank, *, generation: int, now_s: float, joining: bool) -> None:
        """A new process is ordered for the rank."""
        self.retire(rank)
        rank.since, rank.present, rank.joining, rank.assigned_at_s = generation, True, joining, now_s
        self.absent.discard(rank.rank)
        if joining:
            self.joiners.add(rank.rank)

    def yields(self, rank: Rank, yielded: int) -> None:
        """The rank's process has said so, or has left it behind; one that has not gone live knows nothing of its predecessor."""
        if yielded != NO_STEP:
            rank.yielded, rank.yielded_known = yielded, True

    def yielded(self) -> int:
        """Returns the first step that the script of some rank may not have had; NO_STEP when that is not known."""
        return min((rank.yielded for rank in self.playing()), default=NO_STEP)

    def unyielded(self) -> int | None:
        """Returns the first step that the script of some rank is known not to have had, None when nothing is known."""
        return min((rank.yielded for rank in self.playing() if rank.yielded_known), default=None)

    def plays(self, node_id: str, rank: int, generation: int, pid: int = 0) -> bool:
        """Returns whether a message about this rank's process, sent by this node in this generation, is about the present one."""
        if not 0 <= rank < len(self.ranks):
            return False
        known = self.ranks[rank]
        return known.present and known.node_id == node_id and generation >= known.since and (node_id, pid) not in self.retired

    def placing(self, config: JobConfig) -> Placing:
        """Returns who keeps whose replicas, with the nodes that there are now."""
        return place_replicas(
            [node.node_id for node in self.members()],
            spares=[node.node_id for node in self.spares()],
            replicas=config.replicas,
            places=config.place_replicas,
            domains={node_id: node.domain for node_id, node in self.nodes.items() if node.domain},
        )

    def spreads(self, seat: int, config: JobConfig) -> dict[str, int]:
        """Returns, of each spare, how many whole domains may be lost once it has that seat; {} where no domain is known."""
        domains = {node_id: node.domain for node_id, node in self.nodes.items() if node.domain}
        if not domains:
            return {}
        others = [node_id for at, node_id in enumerate(self.seats) if node_id is not None and at != seat]
        spares = self.spares()
        of = {each.domain: each.node_id for each in spares}  # one of each domain stands for all
        found = {domain: min(config.replicas, spread_of([*others, node_id], domains)) for domain, node_id in of.items()}
        return {each.node_id: found[each.domain] for each in spares}

    def all_placements(self, config: JobConfig) -> list[tuple[str, tuple[Placement, ...]]]:
        """Returns, of each member, the places of its ranks, with the endpoints of those that are to keep their replicas."""
        placing, placed = self.placing(config), []
        for node_rank, node_id in enumerate(self.seats):
            if node_id is None:
                continue
            endpoints = tuple(self.nodes[holder].endpoint for holder in placing.holders[node_id])
            domain = placing.domains.get(node_id, "")
            places = (
                Placement(
                    rank=rank.rank, local_rank=local_rank, node_id=node_id, node_rank=node_rank, holders=endpoints, domain=domain
                )
                for local_rank, rank in enumerate(self.of_seat(node_rank))
            )
            placed.append((node_id, tuple(places)))
        return placed


def choose_members(nodes: Iterable[Node], nnodes: int) -> list[str]:
    """Returns the nodes that start as members: those with the lowest launch index."""
    return [node.node_id for node in sorted(nodes, key=lambda node: node.index)[:nnodes]]


def choose_spare(
    nodes: Mapping[str, Node],
    *,
    seat: int = -1,
    hot: Mapping[str, int] | None = None,
    keepers: Collection[str] = (),
    spreads: Mapping[str, int] | None = None,
) -> tuple[str | None, str]:
    """Returns (the spare to use next, why), or (None, why there is none).

    `hot`: spare -> the seat that it is hot for. One that is so for `seat` comes first, one that is for another seat last.
    `spreads`: how many whole domains may be lost once a spare has that seat: where that is more comes before where it is less.
    `keepers`: have the replicas of that seat's ranks in their own memory, and come before others that are equal.
    """
    hot, spreads = hot or {}, spreads or {}

    def order(node: Node) -> tuple[bool, bool, int, bool, int]:
        other = hot.get(node.node_id)
        return other != seat, other is not None, -spreads.get(node.node_id, 0), node.node_id not in keepers, node.index

    spares = sorted((node for node in nodes.values() if node.role is NodeRole.SPARE), key=order)
    if spares:
        first = spares[0].node_id
        why = f"is the first of {len(spares)} spares"
        if hot.get(first) == seat:
            why = "is hot for this seat"
        elif first in keepers:
            why = "has the replicas of this seat's ranks"
        elif spreads.get(first, 0) > min(spreads.values(), default=0):
            why = "is not of a domain that has too many nodes"
        return first, f"{first} {why}"
    counts = Counter(node.role for node in nodes.values())
    return None, f"no spare is left ({', '.join(f'{counts[role]} {role}' for role in NodeRole if counts[role])})"
