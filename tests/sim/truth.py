"""What really happened, kept outside of everything under test, and what must always be true of it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deadpool.proto.messages import NO_STEP


@dataclass(frozen=True, slots=True)
class Loop:
    """One of the script's loops: its first step, and the first that is not in it."""

    start: int
    until: int


@dataclass(slots=True)
class Groups:
    """One generation's groups and store, as its ranks see them."""

    generation: int
    store_at: int = 0  # port of the agent that serves the store
    planned: bool = False  # it goes on from a state, it does not start from scratch
    start: int | None = None  # content of the checkpoint that its ranks agreed on at a start
    shown: dict[int, dict[int, int]] = field(default_factory=dict)  # step -> rank -> content, for verification
    said: dict[int, dict[int, Any]] = field(default_factory=dict)  # step -> rank -> what it has sealed and acknowledged
    wishes: dict[int, list[int]] = field(default_factory=dict)  # by step: the intervals that its ranks have wished
    refused: set[int] = field(default_factory=set)  # steps that some rank cannot protect
    unverified: set[int] = field(default_factory=set)  # steps at which the ranks compare nothing
    wrong_from: int | None = None  # the step from which on all of its ranks compute with a flipped bit
    arrived: set[int] = field(default_factory=set)  # at the rendezvous of reform
    announced: dict[int, dict[int, int]] = field(
        default_factory=dict
    )  # step -> rank -> content that it has sealed and acknowledged
    yields: dict[int, bool] = field(default_factory=dict)  # step -> whether its ranks yield it
    in_body: dict[int, set[int]] = field(default_factory=dict)  # step -> the ranks that have entered its loop body
    after_loop: set[int] = field(default_factory=set)  # the ranks that communicate there
    between: dict[int, set[int]] = field(default_factory=dict)  # loop -> the ranks that communicate behind it
    playing: dict[int, int] = field(default_factory=dict)  # rank -> pid of the process that went live
    resumed: dict[int, int] = field(default_factory=dict)  # rank -> content of the state it resumed from
    steps: dict[int, int] = field(default_factory=dict)  # rank -> its newest state
    copies: dict[str, int] = field(default_factory=dict)  # the nodes that have its ranks -> how many others keep their replicas


class Truth:
    """States are known by their content: a number that stands for the whole history of the state (branch and steps)."""

    def __init__(self, world_size: int, seed: int) -> None:
        self._sizes = {0: world_size}  # from which generation on there are so many ranks
        self.excluded: dict[int, frozenset[int]] = {}  # generation -> the ranks without which it goes on
        self.seed = seed
        self.nproc_per_node = 0  # of the job, once it is known
        self.generations: dict[int, Groups] = {}
        self.parents: dict[int, int] = {}  # content -> content one step before
        self.steps: dict[int, int] = {}
        self.committed = 0  # content of the newest commit, 0 when there is none
        self.committed_in = 0  # that generation; what its ranks have kept where is what a loss may leave
        self.replicas = 1  # asked for
        self.racks: Mapping[str, str] = {}  # which nodes fail together; {}: each by itself
        self.losses: dict[str, int] = {}  # node whose vault was lost or out of reach -> the generation then; commits clear it
        self.excused = False  # more vaults were lost together than the job has to survive: a commit may have been lost with them
        self.void_before = 0  # generations that the supervisor gave up before it knew of any hook: they commit nothing
        self.roles: dict[int, tuple[str, int, int]] = {}  # pid -> node, rank, generation of the order that made it so
        self.ordered: dict[int, int] = {}  # rank -> generation of the newest order for a process of it
        self.checkpoint = 0  # content of the newest complete checkpoint
        self.wrong: dict[int, int] = {}  # content with a flipped bit in its history -> what it should be
        self.compares = False  # whether ranks compare what they hold
        self.unfit: set[int] = set()  # steps of which a rank cannot be restored for that
        self.ended_unprotected = False  # the last step could not be committed
        self.named = False  # the ranks have reported the flipped bit that they hold
        self.bodies: dict[int, set[int]] = {}  # rank -> the steps whose loop body it has been through
        self.lost_bodies: set[tuple[int, int]] = set()  # rank and step: the node was lost within it
        self.ended_in_body: dict[int, tuple[str, int, int]] = {}  # pid -> node, rank, step, until its end is reported
        self.interval_max = 1  # steps from one protected state to the next
        self.apart_from: int | None = None  # the step from which on ranks hold, by right, other bytes of what they held alike
        self.leaves_at = NO_STEP  # the step in whose loop body the script leaves the loop
        self.leaves_from = NO_STEP  # the newest commit from which it gets there (again)
        self.prepared_for: set[int] = set()  # contents of states that what the script does between two loops has changed
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
        """Returns the content of the next state, stepped to in that generation.

        Gradients are summed: once one rank's state is wrong, that of all others will be, in another way than its own.
        """
        wrong_from = self.groups(generation).wrong_from
        following = self._following(content, self.right(content), generation, wrong=False)
        if content in self.wrong or (wrong_from is not None and self.steps[content] >= wrong_from):
            right = following
            following = self._following(content, right, generation, wrong=True)
            self.wrong[following] = right
        return following

    def _following(self, content: int, right: int, generation: int, *, wrong: bool) -> int:
        following = hash((content, right, generation, "wrong") if wrong else (right, generation)) | 1
        self.parents[following] = content if wrong else right
        self.steps[following] = self.steps[content] + 1
        return following

    def between_loops(self, content: int, generation: int) -> int:
        """Returns the content once the script has done what it does between two loops: still of the same step."""
        self.check(content not in self.prepared_for, f"what is between two loops was done twice after S_{self.steps[content]}")
        right = hash((self.right(content), generation, "between")) | 1
        following = right
        self.parents[right], self.steps[right] = self.right(content), self.steps[content]
        if content in self.wrong:
            following = hash((content, generation, "between, wrong")) | 1
            self.parents[following], self.steps[following], self.wrong[following] = content, self.steps[content], right
        self.prepared_for |= {right, following}
        return following

    def are_apart(self, step: int) -> bool:
        """Returns whether each rank trains something of its own by S_step, which was the same on all before."""
        return self.apart_from is not None and step >= self.apart_from

    def right(self, content: int) -> int:
        """Returns what the content would be without any flipped bit."""
        return self.wrong.get(content, content)

    def flip(self, content: int, generation: int) -> int:
        """A bit of one rank's state flips while it runs in that generation; returns its content now."""
        flipped = hash((content, "flipped")) | 1
        self.parents[flipped], self.steps[flipped] = self.parents.get(content, 0), self.steps[content]
        self.wrong[flipped] = self.right(content)
        if content in self.prepared_for:
            self.prepared_for.add(flipped)
        groups = self.groups(generation)
        groups.wrong_from = max(self.steps[content], *groups.steps.values())
        return flipped

    def ranks(self, generation: int) -> list[int]:
        """Returns those that play in it."""
        size = self._sizes[max(since for since in self._sizes if since <= generation)]
        return [rank for rank in range(size) if rank not in self.excluded.get(generation, ())]

    def world_size(self, generation: int) -> int:
        return len(self.ranks(generation))

    def peers_of(self, rank: int, generation: int, copies: int) -> tuple[int, ...]:
        """Returns all other ranks, which hold the same parameters; () when they are on too few nodes to lose so many."""
        others = tuple(other for other in self.ranks(generation) if other != rank)
        return others if len(self.groups(generation).copies) > max(1, copies) else ()

    def resized(self, generation: int, world_size: int) -> None:
        self._sizes[generation] = world_size

    def descends(self, content: int, ancestor: int) -> bool:
        content, ancestor = self.right(content), self.right(ancestor)
        while content and content != ancestor:
            content = self.parents.get(content, 0)
        return content == ancestor

    # ------------------------------------------------------------ what happens

    def lost(self, node_id: str) -> None:
        """The node's vault is gone, or out of the supervisor's reach."""
        self.losses[node_id] = newest = max(self.generations, default=0)
        since = [number for number in self.generations if number >= self.committed_in] or [newest]
        alone = min(map(self.world_size, since)) <= self.nproc_per_node  # since its newest commit the job has had one node
        self.excused |= alone or not (len(self.losses) <= self._copies() or self._are_one_rack(set(self.losses)))

    def _copies(self) -> int:
        """Returns how many nodes may be lost together without the newest commit: fewer once there are fewer nodes."""
        copies = [each for placed in self._placed() for each in placed.values()]
        return max(1, min(self.replicas, *copies)) if copies else 1

    def _placed(self) -> list[dict[str, int]]:
        """Returns where ranks and their replicas have been since the newest commit."""
        return [groups.copies for number, groups in self.generations.items() if number >= self.committed_in and groups.copies]

    def _are_one_rack(self, lost: set[str]) -> bool:
        """Returns whether these nodes are of one rack, and no rack has had more than half of the nodes that trained."""
        one = len({self.racks.get(node, node) for node in lost}) == 1
        placed = self._placed()
        return one and bool(placed) and all(2 * max(Counter(map(self.racks.get, each)).values()) <= len(each) for each in placed)

    def announce(self, generation: int, rank: int, content: int) -> bool:
        """A rank says that its state is safe; returns whether it is committed now."""
        step = self.steps[content]
        ranks = self.groups(generation).announced.setdefault(step, {})
        ranks[rank] = content
        if len(ranks) < self.world_size(generation):
            return False
        if generation < self.void_before:
            return True
        self.named |= content in self.wrong and len(ranks) == 1  # there is nobody that could tell
        shown = self.compares and step not in self.groups(generation).unverified
        unseen = content in self.wrong and shown and not self.named
        self.check(not unseen, f"S_{step} is committed with a flipped bit, and nobody has said so")
        if not self.committed or self.steps[self.committed] < step:
            self.committed, self.committed_in = content, generation
            self.leaves_from = step if step <= self.leaves_at else self.leaves_from
        self.losses = {node: at for node, at in self.losses.items() if at >= generation}
        return True

    def goes_live(self, generation: int, rank: int, pid: int, content: int, step: int) -> None:
        """A process runs from here on as this rank, in this generation, from this state."""
        groups = self.groups(generation)
        self.check(groups.playing.setdefault(rank, pid) == pid, f"rank {rank} is played twice in generation {generation}")
        self.check(self.steps[content] == step, f"rank {rank} resumed from S_{self.steps[content]}, the plan says {step}")
        self.check(rank not in groups.resumed, f"rank {rank} goes live twice in generation {generation}")
        self.check(content not in self.prepared_for, f"rank {rank} resumed behind the loop that ends with S_{step}")
        groups.resumed[rank] = content
        contents = {self.right(each) for each in groups.resumed.values()}
        self.check(len(contents) == 1, f"generation {generation} resumes from different states: {groups.resumed}")
        groups.steps[rank] = step
        if content in self.wrong:
            groups.wrong_from = step
        if generation < max(self.generations):
            return  # on a node that was cut off and does not know yet; nobody is with it
        kept = self._commit_step() <= 0 or self.descends(content, self.committed)  # a start from scratch gives S_0 as well
        leaves_again = self.leaves_from <= step <= self.leaves_at < self._commit_step()  # the script had left the loop
        back = leaves_again or bool(self._without_body(step))  # a loop body must run
        again = back and (step == 0 or self.descends(self.committed, content))
        unfit = any(step >= self._commit_step() for step in self.unfit)  # it, or what was taken for committed in its place
        excused = again or self.excused or unfit
        self.check(kept or excused, f"generation {generation} resumes at {step}, the commit of {self._commit_step()} is lost")
        if not kept:
            self.committed = content if self.steps[content] else 0
            self.leaves_from = min(self.leaves_from, step)

    def step_is_of_loop(self, content: int, loop: Loop, step: int, *, begins: bool) -> None:
        """A step is made in its own loop, the first one of a later loop after what the script does before it."""
        self.check(loop.start <= step < loop.until, f"step {step} was made in {loop}")
        done = content in self.prepared_for
        self.check(done is begins, f"step {step} was made{'' if done else ' not'} after what is between two loops")

    def stepped(self, generation: int, rank: int, step: int) -> None:
        """Two slots and the fence bound how far ranks can get apart: by two intervals of states."""
        steps = self.groups(generation).steps
        steps[rank] = step
        apart = step - min(steps.values())
        coupled = not self.groups(generation).refused  # in a pause of protection nothing holds the ranks of this world together
        self.check(
            apart <= 2 * self.interval_max or not coupled,
            f"rank {rank} has completed S_{step} in generation {generation}, others are at {steps}",
        )

    def yields(self, generation: int, rank: int, step: int, yields: bool) -> None:
        """All ranks yield a step to their scripts, or none does: the loop bodies may communicate."""
        groups = self.groups(generation)
        same = groups.yields.setdefault(step, yields) is yields
        self.check(same, f"step {step} of generation {generation} is{'' if yields else ' not'} yielded on rank {rank} alone")

    def all_in_body(self, generation: int, rank: int, step: int) -> bool:
        """The rank has entered the step's loop body; returns whether all have."""
        entered = self.groups(generation).in_body.setdefault(step, set())
        entered.add(rank)
        return len(entered) == self.world_size(generation)

    def all_after_loop(self, generation: int, rank: int) -> bool:
        """The rank communicates after it has left the loop; returns whether all have come to that."""
        groups = self.groups(generation)
        groups.after_loop.add(rank)
        return len(groups.after_loop) == self.world_size(generation)

    def all_between(self, generation: int, rank: int, loop: int) -> bool:
        """The rank communicates behind this loop; returns whether all have come to that."""
        entered = self.groups(generation).between.setdefault(loop, set())
        entered.add(rank)
        return len(entered) == self.world_size(generation)

    def goes_on_without(self, generation: int, ranks: tuple[int, ...], step: int) -> None:
        """These ranks are excluded from S_step on: what they have not been through by then they never are."""
        self.excluded[generation] = frozenset(ranks)
        for rank in ranks:
            self.bodies.setdefault(rank, set()).update(range(step))

    def had(self, generation: int, rank: int, step: int) -> None:
        """The rank is through with the step's loop body; those that are excluded have nothing to do with it."""
        for each in (rank, *self.excluded.get(generation, ())):
            self.bodies.setdefault(each, set()).add(step)

    def body_lost(self, rank: int, step: int) -> None:
        self.lost_bodies.add((rank, step))

    def starts_from(self, step: int) -> None:
        """The ranks start from a checkpoint of S_step: what is before it is not done again, even if the script had left there."""
        if step > self.leaves_at != NO_STEP:
            self.lost_bodies |= {(rank, self.leaves_at) for rank in self.ranks(max(self.generations))}

    def without_body(self, until: int) -> list[tuple[int, int]]:
        """Returns (rank, step) whose loop body never ran to its end, other than for a lost node, which cannot tell."""
        return [
            (rank, step) for step in range(until) for rank in self._without_body(step) if (rank, step) not in self.lost_bodies
        ]

    def _without_body(self, step: int) -> list[int]:
        ranks = self.ranks(max(self.generations))
        return [rank for rank in ranks if step not in self.bodies.get(rank, set())]

    def orders(self, rank: int, generation: int) -> None:
        """The supervisor orders a process for this rank."""
        self.ordered[rank] = max(generation, self.ordered.get(rank, 0))

    def cannot_restore(self, content: int, peers: set[int]) -> None:
        """A replica does not fit its peers' copies, for one of them was made of a state with a flipped bit."""
        self.check(bool({content, *peers} & self.wrong.keys()), f"{content} does not fit {peers}, and no bit has flipped")
        self.unfit.add(self.steps[content])

    def plays(self, rank: int, node_id: str, pid: int) -> None:
        """The supervisor takes this process for the one that plays the rank."""
        role = self.roles.get(pid)
        known = role is not None and role[:2] == (node_id, rank) and role[2] >= self.ordered[rank]
        if not known:
            raise self.fail(f"pid {pid} is {role}, not rank {rank} on {node_id} as ordered in {self.ordered.get(rank)}")

    def recovered(self, generation: int, ends: set[int]) -> None:
        """The supervisor says that every rank has made a step in this generation, or had none left to make."""
        groups = self.groups(generation)
        self.check(groups.planned, f"generation {generation} is called recovered, and has started from scratch")
        for rank in self.ranks(generation):
            resumed = groups.resumed.get(rank)
            moved = resumed is not None and (groups.steps[rank] > self.steps[resumed] or groups.steps[rank] in ends)
            self.check(moved, f"generation {generation} is called recovered, rank {rank} has not made a step")

    def restarted(self, generation: int) -> None:
        """The supervisor says that all ranks have begun anew in this generation."""
        self.check(not self.groups(generation).planned, f"generation {generation} is called restarted, and goes on from a state")

    def exited(self, rank: int, node_id: str, pid: int) -> None:
        """The supervisor takes the end of this process for the end of the one that plays the rank. Pid 0: it was never forked."""
        self.ended_in_body.pop(pid, None)
        if not pid:
            return
        role = self.roles.get(pid)
        self.check(role is not None and role[:2] == (node_id, rank), f"pid {pid} is {role}, not rank {rank} on {node_id}")
        assert role is not None
        ordered = self.ordered[rank]
        self.check(role[2] >= ordered, f"pid {pid} played rank {rank} from generation {role[2]} on, replaced in {ordered}")

    def _commit_step(self) -> int:
        return self.steps.get(self.committed, NO_STEP)
