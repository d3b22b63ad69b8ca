"""Everything the core knows of its job, and the commands not handed out yet. Plain values: two equal jobs compare equal.

The parts are written by one place each: `recovery` by recovery/, `failures` by failures/, `protection` by protection/,
`injections` by injections.py; `progress`, `ending` and `account` by methods here. What must hold between them is in validate.py.
"""

from dataclasses import dataclass, field
from signal import SIGTERM
from typing import Self

from deadpool.proto.config import Injection, JobConfig, to_json
from deadpool.proto.messages import NO_STEP, BadCopy, CopyConflict, Inject, Order, Stop, StoreOpened, Welcome
from deadpool.proto.messages.status import RecoveryRecord
from deadpool.supervisor.model.account import TimeAccount
from deadpool.supervisor.model.commands import Command, EndJob, Note, Quit, SendOrder, SendToAll, Value
from deadpool.supervisor.model.drill import Drill
from deadpool.supervisor.model.failure import EarlierFailure, ErrorMark, Leaver
from deadpool.supervisor.model.hot import HotNode, Swap
from deadpool.supervisor.model.inquiry import Inquiry
from deadpool.supervisor.model.lineage import Sent
from deadpool.supervisor.model.membership import Rank, Roster
from deadpool.supervisor.model.phase import MOVES, Phase
from deadpool.supervisor.model.session import SentOrders
from deadpool.supervisor.model.timeline import RecoveryAttempt, Stage, Story

_OF_SIGNALS = 128  # exit codes above it name the signal that ended the job
_ERROR_LETTERS = 500  # of the line in the event; all of it is in the logs
_KEPT_TO_ALL = 16  # orders for everybody, before it is looked at which of them all agents have had
STOP_MARGIN_S = 10.0  # an agent that has not said Stopped this long after its grace is given up


@dataclass(slots=True, kw_only=True)
class Armed:
    """An injection. `spent`: an agent may have carried it out, at `at_s`. `explained`: the failure that it led to was seen."""

    injection: Injection
    spent: bool = False
    at_s: float = 0.0
    explained: bool = False

    def order(self) -> Inject:
        injection = self.injection
        return Inject(
            injection_id=injection.injection_id, kind=injection.kind, target=injection.target, step=injection.step
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenCollective:
    """A collective failed and nobody is known to be dead: at `deadline_s` the job re-forms with the same members."""

    node_id: str
    rank: int
    error: str
    at_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprotected:
    """A rank's states since S_step, in this generation."""

    generation: int
    step: int
    reason: str


@dataclass(slots=True, kw_only=True)
class RecoveryState:
    """`attempt`: while the generation is being brought up, in the phases start and recover. `story`: from the first failure on.

    `drained`: rank -> the node that is being drained, where its process of before waits to be ended; `draining`: that node,
    until its ranks run elsewhere. `holders`: the nodes that keep replicas in this generation; `holders_lost`: those of them that
    were lost while the ranks were out of their loops, and needed none; `keepers`: the holders by seat; `keepers_before`: those of
    earlier generations, the newest first; `spread`: so many whole domains may be lost together, 0: none are known. `fruitless`:
    recoveries since the last new commit; `fruitful_step`: the newest commit when it was last set back. `restarts`: of an unhooked
    job.
    `store`: the newest one that the job has had. `hot`: by spare; `hot_members`: by the node that has those ranks itself.
    `swaps`: by the node whose ranks are to move. `not_hot`: nodes that have failed to get so, and are not asked again.
    `needed`: seats that cannot be excluded in this recovery; `needs_all`: none can, in this job. `another_since_step`: from this
    step on the training is not the unbroken one, for ranks were excluded; NO_STEP while it is.
    """

    attempt: RecoveryAttempt | None = None
    story: Story | None = None
    records: list[RecoveryRecord] = field(default_factory=list)
    lineage: list[Sent] = field(default_factory=list)
    holders: frozenset[str] = frozenset()
    holders_lost: frozenset[str] = frozenset()
    keepers: dict[int, tuple[str, ...]] = field(default_factory=dict)
    keepers_before: dict[int, tuple[str, ...]] = field(default_factory=dict)
    spread: int = 0
    draining: str = ""
    drained: dict[int, str] = field(default_factory=dict)
    restarts: int = 0
    fruitless: int = 0
    fruitful_step: int = NO_STEP
    store_failures: int = 0
    store: StoreOpened | None = None
    hot: dict[str, HotNode] = field(default_factory=dict)
    hot_members: dict[str, HotNode] = field(default_factory=dict)
    swaps: dict[str, Swap] = field(default_factory=dict)
    not_hot: set[str] = field(default_factory=set)
    needed: set[int] = field(default_factory=set)
    needs_all: bool = False
    another_since_step: int = NO_STEP

    def holder_lost(self, node_id: str) -> None:
        """It had no replicas to take just then, and is missed if there will be some."""
        self.holders_lost |= self.holders & {node_id}

    def branch(self, *, generation: int, resume_step: int) -> None:
        """States after S_resume_step of generations before this one are of a dead branch."""
        self.lineage.append(Sent(generation=generation, resume_step=resume_step))


@dataclass(slots=True, kw_only=True)
class FailureState:
    """What failures are judged by. `readings`: of each node, from its last heartbeat.

    `unwell`: nodes with ranks whose readings would keep a spare from getting any (known where spares are kept hot).
    `exits_expected`: until when each rank is waited for that is about to exit; no broken collective is acted on before.
    `inquiry`: the steps do not advance. `leavers`: in this generation, by rank. `stragglers`: in this generation, by rank: how
    many times the median its own time of a step is.
    """

    earlier: list[EarlierFailure] = field(default_factory=list)
    errors: list[ErrorMark] = field(default_factory=list)
    readings: dict[str, dict[str, float]] = field(default_factory=dict)
    unwell: set[str] = field(default_factory=set)
    broken_collective: BrokenCollective | None = None
    exits_expected: dict[int, float] = field(default_factory=dict)
    inquiry: Inquiry | None = None
    leavers: dict[int, Leaver] = field(default_factory=dict)
    stragglers: dict[int, float] = field(default_factory=dict)

    def exit_expected_until_s(self) -> float:
        """Returns when all that is expected to exit is not waited for any more."""
        return max(self.exits_expected.values(), default=0.0)


@dataclass(slots=True, kw_only=True)
class ProtectionState:
    """`unprotected`: by rank. `bad_copies`: those that were reported; a rank may report one twice.

    `conflicts`: replicas, and peers that they are not planned with any more. `differed`: generation and step of the last
    difference, which several ranks may report; `doubted`: the last one that could not be repaired; `corrupted`: rank -> what was
    wrong with the state that it held, until it has ended. `checkpoint_step`: of the newest complete persistent checkpoint.
    """

    unprotected: dict[int, Unprotected] = field(default_factory=dict)
    bad_copies: set[BadCopy] = field(default_factory=set)
    conflicts: set[CopyConflict] = field(default_factory=set)
    differed: tuple[int, int] = (0, NO_STEP)
    doubted: Unprotected | None = None
    corrupted: dict[int, str] = field(default_factory=dict)
    checkpoint_asked: bool = False
    checkpoint_step: int = NO_STEP


@dataclass(slots=True, kw_only=True)
class ProgressState:
    """`commit_step`: the newest that anyone has reported. `finished_step`, `released_step`: with which a loop has ended, in this
    generation, on some rank, and on all, which were released then.

    `assembled_s`: when enough agents had said Hello, None before.

    `longest_build_s`: that a process has taken from join() to its first steps, made or rehearsed.
    """

    commit_step: int = NO_STEP
    finished_step: int = NO_STEP
    released_step: int = NO_STEP
    longest_build_s: float = 0.0
    assembled_s: float | None = None

    def commit_known(self, step: int) -> None:
        self.commit_step = max(self.commit_step, step)

    def gone_back(self, step: int) -> None:
        """What was committed after this step is of a dead branch: what is lost is lost once."""
        self.commit_step = min(self.commit_step, step)

    def finished(self, step: int) -> None:
        self.finished_step = max(self.finished_step, step)

    def released(self) -> int:
        """Returns the step with which the loop has ended, from which all ranks are released now."""
        self.released_step = self.finished_step
        return self.released_step

    def assembled(self, at_s: float | None) -> None:
        self.assembled_s = at_s

    def build_seen(self, seconds: float) -> bool:
        """Returns whether no build before has taken so long."""
        longest, self.longest_build_s = self.longest_build_s, max(self.longest_build_s, seconds)
        return seconds > longest


@dataclass(slots=True, kw_only=True)
class EndingState:
    """`exit_code`: None until the end is decided. `over`: Quit was given."""

    exit_code: int | None = None
    root_cause: str = ""
    deadline_s: float = 0.0
    over: bool = False


@dataclass(slots=True, kw_only=True)
class JobState:
    """`term`: of the supervisor that decides now, counted from 1. `hooked`: a rank has called deadpool.join()."""

    config: JobConfig
    config_json: str
    roster: Roster
    phase: Phase = Phase.ASSEMBLE
    generation: int = 0
    term: int = 0
    hooked: bool = False
    recovery: RecoveryState = field(default_factory=RecoveryState)
    failures: FailureState = field(default_factory=FailureState)
    protection: ProtectionState = field(default_factory=ProtectionState)
    progress: ProgressState = field(default_factory=ProgressState)
    injections: dict[int, Armed] = field(default_factory=dict)
    orders: SentOrders = field(default_factory=SentOrders)
    ending: EndingState = field(default_factory=EndingState)
    drill: Drill = field(default_factory=Drill)
    account: TimeAccount = field(default_factory=TimeAccount)
    cause: str = field(default="", compare=False)
    outbox: list[Command] = field(default_factory=list, compare=False)

    @classmethod
    def new(cls, config: JobConfig) -> Self:
        return cls(
            config=config,
            config_json=to_json(config),
            roster=Roster.empty(nnodes=config.nnodes, nproc_per_node=config.nproc_per_node),
            injections={injection.injection_id: Armed(injection=injection) for injection in config.injections},
        )

    # ------------------------------------------------------------ commands

    def send(self, node_id: str, order: Order) -> None:
        number = 0
        if not isinstance(order, Welcome):  # which every Hello gets
            number = self.orders.next()
            self.roster.nodes[node_id].session.sends(number, order)
        self.outbox.append(SendOrder(cause=self.cause, node_id=node_id, order=order, number=number))

    def broadcast(self, order: Order) -> None:
        """To every agent that there is, whether or not it is connected just now."""
        self.outbox.append(SendToAll(cause=self.cause, order=order, number=self.orders.add_to_all(order)))
        if len(self.orders.to_all) > _KEPT_TO_ALL:
            had = (node.session.had for node in self.roster.nodes.values() if node.live)
            self.orders.forget(min(had, default=self.orders.newest))

    def note(self, event: str, **fields: Value) -> None:
        self.outbox.append(Note(cause=self.cause, event=event, generation=self.generation, fields=fields))

    # ------------------------------------------------------------ what concerns several parts

    def time_goes(self, now_s: float) -> None:
        """Books the time up to now, before what happens now changes anything."""
        self.account.book(self.time_kind(), self.roster.live_count, now_s=now_s)

    def time_kind(self) -> str:
        """Returns what the time goes into as things stand: a field of SpentTimes."""
        attempt = self.recovery.attempt
        match self.phase:
            case Phase.ASSEMBLE:
                return "assembling"
            case Phase.START if self.recovery.story is None:
                return "starting"
            case Phase.RUN:
                return "again" if self.account.again else "productive"
            case Phase.START | Phase.RECOVER:
                return "waiting" if attempt is not None and attempt.stage is Stage.SPARE else "recovering"
            case Phase.FINISH | Phase.END:
                return "finishing"

    def move(self, phase: Phase) -> None:
        assert phase in MOVES[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    def next_generation(self) -> int:
        """Returns the number of the generation that begins; what was suspected in the one before is settled with it."""
        self.generation += 1
        self.failures.broken_collective, self.failures.exits_expected = None, {}
        self.failures.leavers, self.failures.stragglers = {}, {}
        self.progress.finished_step = self.progress.released_step = NO_STEP
        return self.generation

    def built(self, rank: Rank, now_s: float) -> None:
        """The rank's process has constructed all it needs, and has made a step."""
        if rank.joined_s is not None:
            self.build_took(rank.rank, now_s - rank.joined_s)
        rank.joined_s = None

    def build_took(self, rank: int, seconds: float) -> None:
        """From join() to the first steps, made or rehearsed."""
        if self.progress.build_seen(seconds):
            self.note("slowest_build", rank=rank, seconds=round(seconds, 1))

    def end(self, exit_code: int, reason: str, *, now_s: float, details: str = "") -> None:
        """Decides the job's end: every agent stops. `reason` is the root cause unless the job is done."""
        self.move(Phase.END)
        ending = self.ending
        ending.exit_code = exit_code
        ending.root_cause = f"{reason}\n{details}".rstrip() if exit_code in (1, 2) else ""
        ending.deadline_s = now_s + self.config.end_timeout_s + STOP_MARGIN_S
        self.recovery.attempt = self.recovery.story = self.failures.broken_collective = None
        error = {"error": details.splitlines()[-1][:_ERROR_LETTERS]} if details else {}
        self.note("job_ended", exit_code=exit_code, reason=reason, **error)
        self.outbox.append(EndJob(cause=self.cause, exit_code=exit_code, root_cause=ending.root_cause))
        by_signal = exit_code - _OF_SIGNALS if exit_code > _OF_SIGNALS else SIGTERM  # ranks get the one that the launcher got
        stop = Stop(reason=reason, grace_s=self.config.stop_grace_s, signal_number=by_signal, exit_code=exit_code)
        self.broadcast(stop)
        self.quit_if_all_stopped()

    def quit_if_all_stopped(self, *, gave_up: bool = False) -> None:
        if self.ending.over or not (gave_up or all(node.stopped for node in self.roster.live())):
            return
        assert self.ending.exit_code is not None
        self.ending.over = True
        self.outbox.append(Quit(cause=self.cause, exit_code=self.ending.exit_code))
