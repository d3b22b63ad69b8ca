"""Everything the core knows of its job, and the commands not handed out yet. Plain values: two equal jobs compare equal."""

from dataclasses import dataclass, field
from enum import StrEnum
from signal import SIGTERM
from typing import Self

from deadpool.proto.config import Injection, JobConfig, to_json
from deadpool.proto.messages import NO_STEP, BadCopy, CopyConflict, Inject, Order, Stop
from deadpool.proto.messages.status import RecoveryRecord
from deadpool.supervisor.failures.classify import EarlierFailure, ErrorMark
from deadpool.supervisor.failures.hang import Inquiry
from deadpool.supervisor.model.commands import Command, EndJob, Note, Quit, SendOrder, Value
from deadpool.supervisor.model.membership import Rank, Roster
from deadpool.supervisor.model.timeline import RecoveryAttempt, Story
from deadpool.supervisor.recovery.plan import Sent

_OF_SIGNALS = 128  # exit codes above it name the signal that ended the job
STOP_MARGIN_S = 10.0  # an agent that has not said Stopped this long after its grace is given up


class Phase(StrEnum):
    ASSEMBLE = "assemble"
    START = "start"
    RUN = "run"
    RECOVER = "recover"
    FINISH = "finish"
    END = "end"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.ASSEMBLE: frozenset({Phase.START, Phase.END}),
    Phase.START: frozenset({Phase.START, Phase.RUN, Phase.RECOVER, Phase.END}),
    Phase.RUN: frozenset({Phase.START, Phase.RECOVER, Phase.FINISH, Phase.END}),
    Phase.RECOVER: frozenset({Phase.RECOVER, Phase.START, Phase.RUN, Phase.END}),
    Phase.FINISH: frozenset({Phase.START, Phase.RECOVER, Phase.END}),
    Phase.END: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class Armed:
    """An injection. `spent`: an agent has been allowed to strike, at `at_s`. `explained`: the failure that it led to was seen."""

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
class JobState:
    config: JobConfig
    config_json: str
    roster: Roster
    phase: Phase = Phase.ASSEMBLE
    generation: int = 0
    term: int = 0  # of the supervisor that decides now; they are counted from 1
    hooked: bool = False
    commit_step: int = NO_STEP  # the newest that anyone has told of
    attempt: RecoveryAttempt | None = None  # while the generation is being brought up: phases start and recover
    story: Story | None = None
    records: list[RecoveryRecord] = field(default_factory=list)
    lineage: list[Sent] = field(default_factory=list)
    bad_copies: set[BadCopy] = field(default_factory=set)  # those that were reported; a rank may say so twice
    conflicts: set[CopyConflict] = field(default_factory=set)  # replicas, and peers that they are not planned with any more
    draining: str = ""  # the node whose ranks are being moved, until they run elsewhere
    leaving: dict[int, str] = field(default_factory=dict)  # rank -> that node, where its process of before waits to be ended
    holders: frozenset[str] = frozenset()  # nodes that keep replicas in this generation
    armed: dict[int, Armed] = field(default_factory=dict)
    past: list[EarlierFailure] = field(default_factory=list)
    readings: dict[str, dict[str, float]] = field(default_factory=dict)  # of each node, from its last heartbeat
    errors: list[ErrorMark] = field(default_factory=list)
    restarts: int = 0  # of an unhooked job
    fruitless: int = 0  # recoveries since the last new commit
    fruitful_step: int = NO_STEP  # the newest commit when `fruitless` was last reset
    store_failures: int = 0
    broken_collective: BrokenCollective | None = None
    exit_expected_until_s: float = (
        0.0  # a rank of this generation is about to exit with an error: no broken_collective is acted on before
    )
    inquiry: Inquiry | None = None  # the steps do not advance
    assembled_s: float | None = None  # when nnodes agents had said Hello
    finished_step: int = NO_STEP
    longest_build_s: float = 0.0  # that a process has taken from join() to its first steps, made or rehearsed
    unprotected: dict[int, Unprotected] = field(default_factory=dict)  # by rank
    differed: tuple[int, int] = (0, NO_STEP)  # generation and step of the last difference told; several ranks may tell it
    doubted: Unprotected | None = None  # the last one that could not be repaired
    corrupted: dict[int, str] = field(default_factory=dict)  # rank -> what was wrong with the state it held, until it has ended
    checkpoint_asked: bool = False
    checkpoint_step: int = NO_STEP  # of the newest complete persistent checkpoint
    exit_code: int | None = None
    root_cause: str = ""
    end_deadline_s: float = 0.0
    over: bool = False  # Quit was given
    cause: str = field(default="", compare=False)
    outbox: list[Command] = field(default_factory=list, compare=False)

    @classmethod
    def new(cls, config: JobConfig) -> Self:
        return cls(
            config=config,
            config_json=to_json(config),
            roster=Roster.empty(nnodes=config.nnodes, nproc_per_node=config.nproc_per_node),
            armed={injection.injection_id: Armed(injection=injection) for injection in config.injections},
        )

    def send(self, node_id: str, order: Order) -> None:
        number = self.roster.nodes[node_id].session.number(order)
        self.outbox.append(SendOrder(cause=self.cause, node_id=node_id, order=order, number=number))

    def broadcast(self, order: Order) -> None:
        for node in self.roster.live():
            self.send(node.node_id, order)

    def note(self, event: str, **fields: Value) -> None:
        self.outbox.append(Note(cause=self.cause, event=event, generation=self.generation, fields=fields))

    def move(self, phase: Phase) -> None:
        assert phase in MOVES[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    def heard_commit(self, step: int) -> None:
        self.commit_step = max(self.commit_step, step)

    def built(self, rank: Rank, now_s: float) -> None:
        """The rank's process has constructed all it needs, and has made a step."""
        if rank.joined_s is not None and now_s - rank.joined_s > self.longest_build_s:
            self.longest_build_s = now_s - rank.joined_s
            self.note("slowest_build", rank=rank.rank, seconds=round(self.longest_build_s, 1))
        rank.joined_s = None

    def end(self, exit_code: int, reason: str, *, now_s: float, details: str = "") -> None:
        """Decides the job's end: every agent stops. `reason` is the root cause unless the job is done."""
        self.move(Phase.END)
        self.exit_code = exit_code
        self.root_cause = f"{reason}\n{details}".rstrip() if exit_code in (1, 2) else ""
        self.attempt = self.story = self.broken_collective = None
        self.end_deadline_s = now_s + self.config.end_timeout_s + STOP_MARGIN_S
        self.note("job_ended", exit_code=exit_code, reason=reason)
        self.outbox.append(EndJob(cause=self.cause, exit_code=exit_code, root_cause=self.root_cause))
        by_signal = exit_code - _OF_SIGNALS if exit_code > _OF_SIGNALS else SIGTERM  # ranks get the one that the launcher got
        stop = Stop(reason=reason, grace_s=self.config.stop_grace_s, signal_number=by_signal, exit_code=exit_code)
        self.broadcast(stop)
        self.quit_if_all_stopped()

    def quit_if_all_stopped(self, *, gave_up: bool = False) -> None:
        if self.over or not (gave_up or all(node.stopped for node in self.roster.live())):
            return
        assert self.exit_code is not None
        self.over = True
        self.outbox.append(Quit(cause=self.cause, exit_code=self.exit_code))
