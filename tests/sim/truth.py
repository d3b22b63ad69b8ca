"""What really happened, kept outside of everything under test, and what must always be true of it."""

from dataclasses import dataclass, field

from deadpool.proto.messages import NO_STEP


@dataclass(slots=True)
class Groups:
    """One generation's groups and store, as its ranks see them."""

    generation: int
    store_node: str = ""
    arrived: set[int] = field(default_factory=set)  # at the rendezvous of reform
    announced: dict[int, set[int]] = field(default_factory=dict)  # step -> ranks that have it sealed and acknowledged
    playing: dict[int, int] = field(default_factory=dict)  # rank -> pid of the process that went live
    resumed: dict[int, int] = field(default_factory=dict)  # rank -> content of the state it resumed from
    steps: dict[int, int] = field(default_factory=dict)  # rank -> its newest state


class Truth:
    """States are known by their content: a number that stands for the whole history of the state (branch and steps)."""

    def __init__(self, world_size: int, seed: int) -> None:
        self._sizes = {0: world_size}  # from which generation on there are so many ranks
        self.seed = seed
        self.generations: dict[int, Groups] = {}
        self.parents: dict[int, int] = {}  # content -> content one step before
        self.steps: dict[int, int] = {}
        self.committed = 0  # content of the newest commit, 0 when there is none
        self.losses: dict[str, int] = {}  # node whose vault was lost or out of reach -> the generation then; commits clear it
        self.excused = False  # two vaults were lost together: a commit may have been lost with them
        self.void_before = 0  # generations that the supervisor gave up before it knew of any hook: they commit nothing
        self.log: list[str] = []

    def groups(self, generation: int) -> Groups:
        return self.generations.setdefault(generation, Groups(generation))

    def fail(self, message: str) -> AssertionError:
        return AssertionError("\n".join([*self.log[-60:], f"seed {self.seed}: {message}"]))

    def check(self, condition: bool, message: str) -> None:
        if not condition:
            raise self.fail(message)

    # ------------------------------------------------------------ states

    def first_content(self, generation: int) -> int:
        """Returns the content of S_0 of a start: every start has its own, so that a mix of two shows itself."""
        content = hash((0, generation)) | 1
        self.steps[content] = 0
        return content

    def next_content(self, content: int, generation: int) -> int:
        """Returns the content of the next state, stepped to in that generation."""
        following = hash((content, generation)) | 1
        self.parents[following] = content
        self.steps[following] = self.steps[content] + 1
        return following

    def world_size(self, generation: int) -> int:
        return self._sizes[max(since for since in self._sizes if since <= generation)]

    def resized(self, generation: int, world_size: int) -> None:
        self._sizes[generation] = world_size

    def descends(self, content: int, ancestor: int) -> bool:
        while content and content != ancestor:
            content = self.parents.get(content, 0)
        return content == ancestor

    # ------------------------------------------------------------ what happens

    def lost(self, node_id: str) -> None:
        """The node's vault is gone, or out of the supervisor's reach."""
        self.losses[node_id] = max(self.generations, default=0)
        self.excused |= len(self.losses) > 1

    def announce(self, generation: int, rank: int, content: int) -> bool:
        """A rank says that its state is safe; returns whether it is committed now."""
        step = self.steps[content]
        ranks = self.groups(generation).announced.setdefault(step, set())
        ranks.add(rank)
        if len(ranks) < self.world_size(generation):
            return False
        if generation < self.void_before:
            return True
        if not self.committed or self.steps[self.committed] < step:
            self.committed = content
        self.losses = {node: at for node, at in self.losses.items() if at >= generation}
        return True

    def goes_live(self, generation: int, rank: int, pid: int, content: int, step: int) -> None:
        """A process runs from here on as this rank, in this generation, from this state."""
        groups = self.groups(generation)
        self.check(groups.playing.setdefault(rank, pid) == pid, f"rank {rank} is played twice in generation {generation}")
        self.check(self.steps[content] == step, f"rank {rank} resumed from S_{self.steps[content]}, the plan says {step}")
        groups.resumed[rank] = content
        contents = set(groups.resumed.values())
        self.check(len(contents) == 1, f"generation {generation} resumes from different states: {groups.resumed}")
        groups.steps[rank] = step
        if generation < max(self.generations):
            return  # on a node that was cut off and does not know yet; nobody is with it
        kept = self._commit_step() <= 0 or self.descends(content, self.committed)  # a start afresh gives S_0 as well
        self.check(
            kept or self.excused, f"generation {generation} resumes at {step}, the commit of {self._commit_step()} is lost"
        )
        if not kept:
            self.committed = content if self.steps[content] else 0

    def stepped(self, generation: int, rank: int, step: int) -> None:
        """Two slots and the fence bound how far ranks can get apart."""
        steps = self.groups(generation).steps
        steps[rank] = step
        apart = step - min(steps.values())
        self.check(apart <= 2, f"rank {rank} has completed S_{step} in generation {generation}, others are at {steps}")

    def _commit_step(self) -> int:
        return self.steps.get(self.committed, NO_STEP)
