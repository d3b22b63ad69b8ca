"""How each node stands, the worst first: what a person must see of a thousand. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from deadpool.cli.live.marks import clock_text
from deadpool.host.sizes import size_text
from deadpool.proto.messages.status import JobStatus, NodeStatus, RankStatus

_SILENT_S = 2.0  # heartbeats come once a second


class Standing(IntEnum):
    """The worst has the lowest number. `letter` stands for it in the grid, with and without colour."""

    LOST = 0
    FAULTY = 1
    SILENT = 2
    TROUBLED = 3
    SLOW = 4
    DRAINED = 5
    NOT_READY = 6
    SPARE = 7
    MEMBER = 8

    @property
    def letter(self) -> str:
        return "XF?!~dw+."[self]

    @property
    def colour(self) -> str:
        return ("red", "red", "red", "yellow", "magenta", "cyan", "yellow", "blue", "green")[self]

    @property
    def said(self) -> str:
        return ("lost", "faulty", "silent", "in trouble", "slow", "drained", "spare, not ready", "spare", "member")[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """`why`: what is wrong with it, "" when nothing is."""

    node: NodeStatus
    standing: Standing
    why: str = ""

    @property
    def has_more_to_say(self) -> bool:
        """Whether `why` deserves a line of its own: it says more than the role does."""
        return bool(self.why) and self.why != Standing.LOST.said


def own_s(rank: RankStatus) -> float:
    """Returns how long a step keeps the rank itself, outside collectives; 0 when that is not known."""
    return rank.step_s - rank.wait_s if rank.step_s > 0 and rank.wait_s >= 0 else 0.0


def slow_ranks(status: JobStatus) -> dict[int, float]:
    """Returns the stragglers, as the supervisor has found them: how many times the median's its own part of a step takes."""
    return {rank.rank: rank.slow_times for node in status.nodes for rank in node.ranks if rank.slow_times > 0}


def standings(status: JobStatus) -> list[NodeStanding]:
    """Returns all nodes, the worst first, else by their index."""
    slow = slow_ranks(status)
    most = max((len(node.ranks) for node in status.nodes), default=0)
    found = [_standing(node, slow, most, status.hooked) for node in status.nodes]
    return sorted(found, key=lambda each: (each.standing, each.node.index))


def _standing(node: NodeStatus, slow: dict[int, float], most: int, hooked: bool) -> NodeStanding:
    slow_here = {rank.rank: slow[rank.rank] for rank in node.ranks if rank.rank in slow}
    if node.role == "lost":
        return NodeStanding(node=node, standing=Standing.LOST, why=_lost(node))
    if node.role == "faulty":
        return NodeStanding(node=node, standing=Standing.FAULTY, why="gets no ranks: it has failed too often, or is not well")
    if node.heartbeat_age_s > _SILENT_S:
        return NodeStanding(node=node, standing=Standing.SILENT, why=f"no heartbeat for {node.heartbeat_age_s:.1f} s")
    if node.troubles:
        return NodeStanding(node=node, standing=Standing.TROUBLED, why="; ".join(node.troubles))
    if slow_here:
        rank, times = max(slow_here.items(), key=lambda each: each[1])
        why = f"rank {rank} works {times:.1f} times as long as the median"
        return NodeStanding(node=node, standing=Standing.SLOW, why=why)
    if node.role in ("draining", "drained"):
        return NodeStanding(node=node, standing=Standing.DRAINED, why=node.role)
    if node.role == "spare":
        ready = node.standins_ready >= most or bool(node.hot_ranks)
        if hooked and not ready:
            why = f"{node.standins_ready} of {most} stand-ins wait"
            return NodeStanding(node=node, standing=Standing.NOT_READY, why=why)
        return NodeStanding(node=node, standing=Standing.SPARE)
    return NodeStanding(node=node, standing=Standing.MEMBER)


def _lost(node: NodeStatus) -> str:
    return f"lost {clock_text(node.lost_ago_s)} ago: {node.lost_why}" if node.lost_why else "lost"


def counts(found: Sequence[NodeStanding]) -> list[tuple[Standing, int]]:
    """Returns how many nodes stand how, in the order of standings."""
    return [(each, sum(one.standing is each for one in found)) for each in Standing if any(one.standing is each for one in found)]


def hot_text(node: NodeStatus) -> str:
    """Returns for which ranks this node has hot stand-ins, and what memory they have to themselves."""
    device = f", {size_text(node.hot_device_bytes)} of GPUs" if node.hot_device_bytes else ""
    return f"{', '.join(map(str, node.hot_ranks))} ({size_text(node.hot_bytes)}{device})"
