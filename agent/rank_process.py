"""What a node's core knows of one process that it has had started: which rank it plays, or is to play."""

from dataclasses import dataclass

from deadpool.proto.messages import RankPrepared, Role


@dataclass(slots=True, kw_only=True)
class Process:
    """`generation`: the newest that it knows. `role`: who it is (None: a stand-in without a rank).

    `hot`: a stand-in that has the role of a rank which others play, since it was ordered so in that generation; 0: it is none.
    `prepared`: what it has said last when it had rehearsed.
    """

    number: int
    rank: int | None
    generation: int
    role: Role | None = None
    pid: int = 0
    registered: bool = False
    hot: int = 0
    prepared: RankPrepared | None = None
    killed: bool = False
    superseded: bool = False  # killed for a newer process of the rank: nobody waits for its exit

    @property
    def waits(self) -> bool:
        return self.rank is None and not self.killed
