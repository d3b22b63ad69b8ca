"""A rank's part in the protocol, pure: what it does with an order or a failure, given what it is doing. No I/O, clock, thread.

    CONSTRUCT --begun--> RUN --break--> BROKEN --quiesced--> WAIT --reform--> RESTORE --restored--> RUN
    REHEARSE --rehearsed--> WAIT          ^ |                 ^                  |
                                          | |                 +-- failed --------+
    RUN --finished--> FINISHED -- break --+ +--a muted call in the loop body--> OUTSIDE --> the process is replaced
                      FINISHED --released--> RELEASED -- break --> the process leaves
    RELEASED --another loop--> REOPENED --all are there--> RUN
                               REOPENED -- break --> OUTSIDE

A rank can go on from the states of the loop that its script is in, and from no others (`earliest`, `latest`): a plan for another
one is carried out by a fresh process. The state with which a later loop begins is not among them: what the script has done since
the loop before is in no snapshot, and belongs to the first step.

A step is over with the loop body that the script runs after it, not before: S_step+1 is what that body leaves (`had`). In the
body a muted call would return to the script what nobody has communicated, so it never returns: that process is replaced, and all
ranks go back to a step whose value they can give to the body once more.

The caller (guard.py) holds one lock around every call and carries the returned actions out. An order of a generation that is not
newer than the newest one heard changes nothing; a plan (Reform) counts only for exactly that generation.
"""

from dataclasses import dataclass
from enum import StrEnum

from deadpool.proto.messages import (
    NO_STEP,
    BadCopy,
    BeginLoop,
    CopyConflict,
    Quiesce,
    RankBroken,
    RankFailed,
    RankFinished,
    RankPrepared,
    RankRaised,
    RankReopened,
    Reform,
    Release,
)
from deadpool.proto.vault.slots import StateId


class RankPhase(StrEnum):
    CONSTRUCT = "construct"  # first start: the script builds model and optimizer with live groups
    REHEARSE = "rehearse"  # a joiner: the same with muted groups, then a step or more
    RUN = "run"
    BROKEN = "broken"  # the generation is over: the step in flight runs to its boundary, to be discarded; a loop body is let run
    OUTSIDE = "outside"  # broken, and the script is where it cannot go back to a step from: it waits to be replaced
    WAIT = "wait"  # out of the step, for the plan
    RESTORE = "restore"  # groups are reformed, the state restored
    FINISHED = "finished"  # the loop is done, others are not yet
    RELEASED = "released"
    REOPENED = "reopened"  # the script has come to another loop, others have not yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Mute and abort all groups of generations before this one."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """Carry out the plan: reform, restore."""

    order: Reform


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """End this process immediately: it is out of the loop, where a broken generation would give its script wrong results."""


Action = Break | Leave | Recover | RankPrepared | RankBroken | RankFailed | RankFinished | RankRaised | RankReopened


class Member:
    """`generation`: the newest heard of. `running`: the one whose groups were last opened. `live`: the state in the process.

    `earliest`, `latest`: the steps of the states that the present loop can go on from. `ended_step`: of the state with which it
    has ended. `commit_step`: the newest commit known; its slot must stay. `yielded`: as in RankPrepared.
    """

    def __init__(self, *, rank: int, generation: int, joiner: bool, repeatable: bool = False) -> None:
        self.rank = rank
        self.generation = generation
        self.running = generation
        self.planned = 0  # the generation of the newest plan that was begun
        self.phase = RankPhase.REHEARSE if joiner else RankPhase.CONSTRUCT
        self.live: StateId | None = None
        self.dirty = False  # optimizer.step has begun since the last boundary
        self.commit_step = NO_STEP
        self.yielded = NO_STEP
        self.attempts = 0  # at a step, of this process, whatever came of them
        self.rehearsals = 1  # how many of them there must be before it goes on from a state that others have stepped to
        self.body_step = NO_STEP  # complete, and its loop body is not through
        self.has_left = False  # its loop, in the body of a step or in the middle of one
        self.exiting = False
        self.earliest, self.latest = 0, NO_STEP
        self.device_bytes = 0  # of a joiner
        self.repeatable = repeatable  # the script can begin once more in this process
        self.ended_step = NO_STEP

    @property
    def rehearsed(self) -> bool:
        """Whether this process may go live with others that have stepped, and does not keep them waiting in its first steps.

        Until then it makes further attempts, muted, whose outcome is discarded: also out of a generation that has broken early.
        """
        return self.attempts >= self.rehearsals

    # ------------------------------------------------------------ orders

    def quiesce(self, order: Quiesce) -> list[Action]:
        if order.generation <= self.generation:
            return []
        self.generation = order.generation
        match self.phase:
            case RankPhase.REHEARSE:
                return []  # its groups are muted; it reports when it has rehearsed
            case RankPhase.WAIT | RankPhase.OUTSIDE:
                return [self._prepared()]
            case RankPhase.REOPENED:
                self.phase = RankPhase.OUTSIDE
                return [self._prepared()]
            case RankPhase.RELEASED:
                return [Leave()]
            case RankPhase.CONSTRUCT | RankPhase.RUN | RankPhase.FINISHED:
                self.phase = RankPhase.BROKEN
            case RankPhase.BROKEN | RankPhase.RESTORE:
                pass
        return [Break(generation=order.generation, reason=order.reason)]

    def reform(self, order: Reform) -> list[Action]:
        if order.generation != self.generation or order.generation == self.planned or self.phase is not RankPhase.WAIT:
            return []
        if order.resume_step < self.earliest or (self.latest != NO_STEP and order.resume_step > self.latest):
            error = f"step {order.resume_step} is of another loop than the script is in"
            return [RankFailed(generation=order.generation, rank=self.rank, phase="reform", error=error)]
        self.phase, self.planned = RankPhase.RESTORE, order.generation
        return [Recover(order=order)]

    def release(self, order: Release) -> list[Action]:
        if order.generation == self.generation and self.phase is RankPhase.FINISHED and order.step >= self.ended_step:
            self.phase = RankPhase.RELEASED
        return []

    def begin_loop(self, order: BeginLoop) -> list[Action]:
        if order.generation == self.generation and self.phase is RankPhase.REOPENED and order.step == self.ended_step:
            self.phase = RankPhase.RUN
        return []

    # ------------------------------------------------------------ what happens in the process

    def collective_failed(self, generation: int, error: str, needs: tuple[int, ...] = ()) -> list[Action]:
        """A collective of that generation failed by itself. Reported once; the supervisor finds the cause and sends Quiesce.

        `needs`: as in RankBroken.
        """
        if generation == self.running and self.phase is RankPhase.RELEASED:
            return [Leave()]
        if generation == self.generation and self.phase is RankPhase.REOPENED:
            self.phase = RankPhase.OUTSIDE
            return [RankBroken(generation=generation, rank=self.rank, error=error, needs=needs)]
        if generation != self.generation or self.phase not in (RankPhase.CONSTRUCT, RankPhase.RUN, RankPhase.FINISHED):
            return []
        self.phase = RankPhase.BROKEN
        return [RankBroken(generation=generation, rank=self.rank, error=error, needs=needs)]

    def stands_in(self, *, start: int, until: int, first: bool) -> None:
        """The script is in the loop of the steps from start to until; `first`: what is before start is its own, too."""
        self.earliest, self.latest = 0 if first else start + 1, until

    def begun(self, step: int) -> None:
        """A loop is entered for the first time, with S_step in the process."""
        self.live = StateId(generation=self.running, step=step)
        self.yielded = step
        if self.phase is RankPhase.CONSTRUCT:
            self.phase = RankPhase.RUN

    def optimizer_began(self) -> bool:
        """Returns whether optimizer.step may change the state: False in a broken generation."""
        if self.phase is RankPhase.BROKEN:
            return False
        if self.phase is RankPhase.RUN:
            self.dirty = True
        return True

    def attempted(self) -> None:
        """An attempt at a step has ended, in whatever way."""
        self.attempts += 1

    def boundary(self, step: int) -> bool:
        """The step function ended. Returns True when step is complete (a loop body follows), False when it must be discarded."""
        if self.phase is not RankPhase.RUN:
            return False
        self.body_step = step
        return True

    @property
    def yields(self) -> bool:
        """Whether the script gets the value of the step just completed: on all ranks alike."""
        return self.body_step != NO_STEP and self.body_step >= self.yielded

    def had(self) -> bool:
        """The script is through with the loop body, if it was in one: returns True when S_step+1 is live with that.

        Also in a generation that has broken meanwhile: a body that has needed a call of it does not get here.
        """
        if self.body_step == NO_STEP:
            return False
        self._whole()
        self.yielded = max(self.yielded, self.body_step + 1)
        self.body_step = NO_STEP
        return True

    def left(self) -> list[Action]:
        """The script has left the loop in the body of a step (break, return, an exception), which so never ends."""
        if self.body_step == NO_STEP or self.phase is not RankPhase.RUN:
            return []
        self._whole()
        self.has_left = True
        return [RankFinished(generation=self.running, rank=self.rank, step=self.body_step + 1)]

    def exits(self, error: str) -> list[Action]:
        """The process is about to exit before all others are done. Said once, and first: it will break its peers' connections."""
        if self.exiting or self.phase in (RankPhase.FINISHED, RankPhase.RELEASED):
            return []
        self.exiting = True
        return [RankRaised(generation=self.running, rank=self.rank, error=error)]

    def left_in_step(self, step: int) -> list[Action]:
        """The script has left the loop in the middle of a step (the iterator form): S_step is its last state."""
        self.has_left = True
        return [RankFinished(generation=self.running, rank=self.rank, step=step)] if self.phase is RankPhase.RUN else []

    @property
    def is_in_body(self) -> bool:
        """Whether the script is where it cannot go back to a step from: a muted call must not return to it."""
        return self.body_step != NO_STEP or self.has_left

    def outside(self) -> list[Action] | None:
        """A muted call is being made. Returns None when it may return, else what this process has to say while it does not."""
        if not self.is_in_body or self.phase not in (RankPhase.BROKEN, RankPhase.OUTSIDE):
            return None
        if self.phase is RankPhase.OUTSIDE:
            return []
        self.phase, self.live = RankPhase.OUTSIDE, None
        return [self._prepared()] if self.generation > self.running else []

    def _whole(self) -> None:
        self.live = StateId(generation=self.running, step=self.body_step + 1)
        self.dirty = False

    def commit_known(self, generation: int, step: int) -> None:
        if generation == self.running:
            self.commit_step = max(self.commit_step, step)

    def finished(self, step: int) -> list[Action]:
        """S_step is committed and the loop has no further step."""
        if self.phase is not RankPhase.RUN:
            return []
        self.phase, self.ended_step = RankPhase.FINISHED, step
        return [RankFinished(generation=self.running, rank=self.rank, step=step)]

    def reopened(self) -> list[Action]:
        """The script has come to another loop. What it has done since the last one is in no snapshot."""
        assert self.phase is RankPhase.RELEASED, self.phase
        self.phase, self.live = RankPhase.REOPENED, None
        return [RankReopened(generation=self.running, rank=self.rank, step=self.ended_step)]

    def quiesced(self, *, clean: bool) -> list[Action]:
        """The main thread is out of the step (or the rehearsal). `clean`: nothing has changed the state since its boundary."""
        assert self.phase in (RankPhase.BROKEN, RankPhase.REHEARSE), self.phase
        assert self.rehearsed
        rehearsed = self.phase is RankPhase.REHEARSE
        if self.dirty or not clean:
            self.live = None
        self.dirty = False
        self.phase = RankPhase.WAIT
        return [self._prepared()] if rehearsed or self.generation > self.running else []

    def restoring(self, *, in_place: bool) -> None:
        """The restore begins; unless the live state is the source, what the process holds is garbage until it is done."""
        if not in_place:
            self.live = None

    def restored(self, order: Reform, state: StateId) -> bool:
        """Returns whether the rank goes on, holding `state`; False when a newer generation has begun meanwhile."""
        if order.generation != self.generation or self.phase is not RankPhase.RESTORE:
            return False
        self.phase = RankPhase.RUN
        self.running = order.generation
        self.live = state
        self.yielded = order.yielded
        self.commit_step = min(max(self.commit_step, order.commit_step), order.resume_step)
        return True

    def recovery_failed(
        self,
        order: Reform,
        phase: str,
        error: str,
        bad_copies: tuple[BadCopy, ...] = (),
        conflicts: tuple[CopyConflict, ...] = (),
    ) -> list[Action]:
        """Reform or restore did not succeed, or a newer generation has cut it short. The rank waits for the next plan."""
        assert self.phase is RankPhase.RESTORE, self.phase
        self.phase = RankPhase.WAIT
        if self.generation > order.generation:
            return [self._prepared()]
        failed = RankFailed(
            generation=order.generation, rank=self.rank, phase=phase, error=error, bad_copies=bad_copies, conflicts=conflicts
        )
        return [failed]

    def _prepared(self) -> RankPrepared:
        return RankPrepared(
            generation=self.generation,
            rank=self.rank,
            live_generation=self.live.generation if self.live else 0,
            live_step=self.live.step if self.live else NO_STEP,
            commit_step=self.commit_step,
            yielded=self.yielded,
            outside=self.phase is RankPhase.OUTSIDE,
            earliest=self.earliest,
            latest=self.latest,
            device_bytes=self.device_bytes,
            repeatable=self.repeatable,
        )
