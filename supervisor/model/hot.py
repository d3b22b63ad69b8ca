"""Nodes whose stand-ins are hot, or get so, for ranks that others play; and the planned swaps that wait for that."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class HotNode:
    """This node's stand-ins construct and rehearse `ranks` of `seat` while others play them.

    A spare's: all ranks of a seat that another node holds. A member's: some of its own, for a process that is lost.

    `generation`: in which that was ordered, at `began_s`. `joined_s`: rank -> when its stand-in had come to join(), until it has
    rehearsed. `rehearsed`: the ranks whose stand-ins wait hot -> what torch has taken of a GPU's memory for that.
    """

    seat: int
    ranks: tuple[int, ...]
    generation: int
    began_s: float
    joined_s: dict[int, float] = field(default_factory=dict)
    rehearsed: dict[int, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return self.rehearsed.keys() >= set(self.ranks)

    def later(self, seconds: float) -> None:
        """Nobody could hear of its progress for so long."""
        self.began_s += seconds
        self.joined_s = {rank: at_s + seconds for rank, at_s in self.joined_s.items()}


@dataclass(slots=True, kw_only=True)
class Swap:
    """A node's ranks are to move though nothing has failed, as soon as a spare is hot for its seat.

    `failed`: spares that could not get hot for it, and why.
    """

    reason: str
    failed: dict[str, str] = field(default_factory=dict)
