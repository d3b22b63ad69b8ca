"""One recovery: how far the present generation has come, and the story and timing that span the generations it took.

A failure in the middle of a recovery starts a new RecoveryAttempt (a new generation) of the same Story; its clock runs on, so
that the phases of the record always add up to the time from the first failure to the last rank's first new step; after a start
from scratch, to when the ranks' processes are there.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum

from deadpool.proto.messages import NO_STEP, RankPrepared, Slot, StoreOpened
from deadpool.proto.messages.status import PhaseTimes, RecoveryRecord
from deadpool.supervisor.model.failure import Failure, FailureClass
from deadpool.supervisor.model.rank_bytes import RankBytes


class Stage(StrEnum):
    SPARE = "spare"  # a seat is vacant: wait for a node
    STORE = "store"  # from scratch: the rendezvous store is being opened; StartRanks follows
    BEGIN = "begin"  # from scratch: the ranks were started; the first heartbeat or RankJoined ends it
    QUIESCE = "quiesce"
    PLAN = "plan"  # everybody is prepared; the last vault reports and the store are awaited
    REFORM = "reform"
    RESTORE = "restore"
    FIRST_STEP = "first_step"


PHASE_OF_STAGE = {
    Stage.SPARE: "decide",
    Stage.STORE: "reform",
    Stage.BEGIN: "restore",  # nobody hears of a first step: the record ends when the ranks' processes are there
    Stage.QUIESCE: "quiesce",
    Stage.PLAN: "plan",
    Stage.REFORM: "reform",
    Stage.RESTORE: "restore",
    Stage.FIRST_STEP: "first_step",
}
_PHASES = tuple(each.name for each in fields(PhaseTimes))


@dataclass(slots=True, kw_only=True)
class Story:
    """From the first failure until every rank has made a new step. `mark_s`: up to when the time is accounted for."""

    first: Failure
    causes: list[str]
    ranks: set[int]
    began_generation: int
    began_s: float
    mark_s: float
    classes: set[FailureClass] = field(default_factory=set)
    spares: list[str] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)  # ranks that the spares took
    phases_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))
    ahead_step: int = NO_STEP  # the largest step that a surviving rank had in progress
    commit_step: int = NO_STEP  # the newest commit that anyone knew of
    resume_step: int = NO_STEP
    lost_steps: int = 0  # that were committed
    replaced: set[int] = field(default_factory=set)  # ranks that had not failed, and got another process all the same
    stepped: bool = False  # some rank has made a step since it went back
    replicated_s: float | None = None  # when a state was committed again, if a spare has taken ranks
    assumed_step: int = NO_STEP  # kept as if it were committed; nobody has reported that it is

    @classmethod
    def begin(cls, failure: Failure, *, generation: int, commit_step: int) -> "Story":
        return cls(
            first=failure,
            causes=[],
            ranks=set(),
            began_generation=generation,
            began_s=failure.at_s,
            mark_s=failure.at_s,
            commit_step=commit_step,
        )

    def add(self, failure: Failure) -> None:
        if failure.cause not in self.causes:
            self.causes.append(failure.cause)
        self.ranks.update(failure.ranks)
        self.classes.add(failure.failure_class)

    def commit_known(self, step: int) -> None:
        """Who has not heard of the last plan still tells of commits that it made void: nothing new is committed before a step."""
        if step > self.assumed_step and (self.resume_step == NO_STEP or self.stepped):
            self.commit_step = max(self.commit_step, step)

    def goes_back(self, resume_step: int, *, newest_step: int) -> None:
        """To S_resume_step, though there was a source of S_newest_step: what was committed beyond that one is lost."""
        self.lost_steps += max(0, self.commit_step - newest_step)
        self.resume_step, self.stepped, self.replicated_s = resume_step, False, None
        self.commit_step = min(self.commit_step, resume_step)

    def lap(self, phase: str, now_s: float) -> None:
        """The time since the last lap went into this phase."""
        self.phases_s[phase] += max(0.0, now_s - self.mark_s)
        self.mark_s = max(self.mark_s, now_s)

    def _class(self) -> FailureClass:
        """Returns the gravest of what happened; a failure while a node is drained makes it a failure."""
        gravest = (FailureClass.PERMANENT, FailureClass.TRANSIENT, FailureClass.PLANNED)
        return next(each for each in gravest if each in self.classes)

    def record(
        self,
        *,
        generation: int,
        survivors_kept_processes: bool,
        job_began_s: float,
        excluded: tuple[int, ...] = (),
        returned: tuple[int, ...] = (),
        groups_kept: int = 0,
        groups_opened: int = 0,
    ) -> RecoveryRecord:
        reexecuted = max(self.ahead_step, self.resume_step) + 1 - self.resume_step if self.resume_step != NO_STEP else 0
        return RecoveryRecord(
            generation=generation,
            cause="; ".join(self.causes),
            failure_class=self._class(),
            node=self.first.node,
            ranks=tuple(sorted(self.ranks)),
            spare=", ".join(self.spares),
            resume_step=self.resume_step,
            steps_reexecuted=reexecuted,
            survivors_kept_processes=survivors_kept_processes,
            phases_s=PhaseTimes(**self.phases_s),
            total_s=self.mark_s - self.began_s,
            committed_steps_lost=self.lost_steps,
            moved=tuple(sorted(self.moved)),
            ended_s=self.mark_s - job_began_s,
            exposed_s=self.replicated_s - self.began_s if self.replicated_s is not None else -1.0,
            excluded=excluded,
            returned=returned,
            groups_kept=groups_kept,
            groups_opened=groups_opened,
        )


@dataclass(slots=True, kw_only=True)
class RecoveryAttempt:
    """The present generation on its way to running. `from_scratch`: all ranks are started, from nothing.

    `behind[stage]`: the ranks that have not passed it; they need not wait for each other, so a rank can be stages ahead.
    `owing`: live nodes whose vault report is due. `drained`: ranks whose processes of before, on a node that is drained, have not
    reached their boundary. `killing`: ranks that must be replaced, until they are seen to exit;
    `outside`: those of them that have not failed, and whose scripts cannot go back to the step from where they are.
    `hint_step`: for joiners, once there was a plan; the newest commit tells it before. `groups`: what each rank has said of those
    whose first member it is: how many have stayed open, and how many were opened.
    """

    generation: int
    from_scratch: bool
    stage: Stage
    began_s: float
    behind: dict[Stage, RankBytes] = field(default_factory=dict)
    owing: set[str] = field(default_factory=set)
    drained: set[int] = field(default_factory=set)
    reports: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    prepared: dict[int, RankPrepared] = field(default_factory=dict)
    store: StoreOpened | None = None
    store_node: str = ""
    killing: set[int] = field(default_factory=set)
    kill_deadline_s: float = 0.0
    outside: set[int] = field(default_factory=set)
    hint_step: int = NO_STEP
    last_at_s: float = 0.0  # when the last rank resumed
    groups: dict[int, tuple[int, int]] = field(default_factory=dict)

    def enter(self, stage: Stage, now_s: float) -> None:
        self.stage, self.began_s = stage, now_s

    def passed(self, rank: int, stage: Stage) -> None:
        """The rank is past this stage, and so past those before it."""
        for earlier, ranks in self.behind.items():
            ranks.discard(rank)
            if earlier is stage:
                return
