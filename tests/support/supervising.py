"""A scene for tests of the supervisor's core: the test plays the agents and reads the orders."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from addressed import addressed

from deadpool.proto import messages
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import NO_STEP, AgentMessage, Order, Slot, SlotKind
from deadpool.supervisor.core import Job
from deadpool.supervisor.model.commands import Answer, Command, EndJob, Note, Quit, SendOrder
from deadpool.supervisor.model.events import (
    DrainRequested,
    Event,
    FromAgent,
    InjectRequested,
    NodesLost,
    StepsStalled,
    StopRequested,
    StragglerJudged,
)
from deadpool.supervisor.model.membership import Rank
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.validate import validate

OrderKind = TypeVar("OrderKind", bound=Order)

CONFIG = JobConfig(job_id="test", nnodes=2, nproc_per_node=2, spares=1, command=("train.py",), python="python", log_dir="logs")


class Scene:
    """`now_s` moves only when the test moves it. `commands`: all so far, one for each agent; `took(...)` reads orders once.

    `validated`: what must hold in the job's state is looked at after every event, which takes as long as there are nodes.
    """

    def __init__(self, **options: Any) -> None:
        self.validated = True
        self.config = replace(CONFIG, **options)
        self.job = Job(self.config)
        self.state = self.job.state
        self.now_s = 100.0
        self.commands: list[Command] = []
        self.past: list[tuple[Event | None, float]] = []
        self._event_id = 0
        self._read = 0

    # ------------------------------------------------------------ what happens

    def say(self, node: int, *said: AgentMessage) -> None:
        for message in said:
            self._do(FromAgent(event_id=self._next_id(), node_id=f"node{node}", message=message))

    def hello(self, node: int) -> None:
        """A new agent comes."""
        pid = self._event_id + 1
        self.say(node, messages.Hello(node_id=f"node{node}", hint=node, host="h", port=node, pid=pid, generation=0))

    def lose(self, *nodes: int, reason: str = "its stream was closed") -> None:
        self._do(NodesLost(event_id=self._next_id(), lost={f"node{node}": reason for node in nodes}))

    def stall(self, stalled_s: float, *, sure: bool = False, generation: int | None = None) -> None:
        generation = self.state.generation if generation is None else generation
        self._do(StepsStalled(event_id=self._next_id(), generation=generation, stalled_s=stalled_s, sure=sure))

    def straggles(self, rank: int, *, over: bool = False, generation: int = 1) -> None:
        """The rank's own part of a step takes three times the median; or (`over`) does so no more."""
        node = f"node{self.home(rank)}"
        judged = StragglerJudged(
            event_id=self._next_id(), generation=generation, rank=rank, node=node, own_s=0.3, median_s=0.1, over=over
        )
        self._do(judged)

    def stop(self, exit_code: int = 143) -> None:
        self._do(StopRequested(event_id=self._next_id(), reason="SIGTERM received", exit_code=exit_code))

    def inject(self, kind: str, target: int, step: int = NO_STEP) -> str:
        event_id = self._next_id()
        self._do(InjectRequested(event_id=event_id, kind=kind, target=target, step=step))
        answer = self.commands[-1]
        assert isinstance(answer, Answer)
        assert answer.event_id == event_id
        return answer.error

    def drain(self, node: str, *, undo: bool = False) -> str:
        """Returns why not, "" when it was accepted."""
        event_id = self._next_id()
        self._do(DrainRequested(event_id=event_id, node=node, reason="", undo=undo))
        answer = next(each for each in reversed(self.commands) if isinstance(each, Answer))
        assert answer.event_id == event_id
        return answer.error

    def wait(self, seconds: float) -> None:
        """Time passes; every deadline on the way is met in order."""
        end_s = self.now_s + seconds
        while (at_s := self.job.next_deadline_s()) is not None and at_s <= end_s:
            self.now_s = max(self.now_s, at_s)
            self.past.append((None, self.now_s))
            self.commands += addressed(self.job.tick(now_s=self.now_s), self.state)
            self._validate()
        self.now_s = end_s

    def _validate(self) -> None:
        if self.validated:
            validate(self.state)

    # ------------------------------------------------------------ what is said often

    def start(self, *, hooked: bool = True, commit_step: int = NO_STEP) -> None:
        """All nodes come, the store opens, the ranks begin; `commit_step` is known to all."""
        for node in range(self.config.nnodes + self.config.spares):
            self.hello(node)
        assert self.took(messages.OpenStore)
        self.say(0, messages.StoreOpened(generation=1, host="h", port=7))
        assert len(self.took(messages.StartRanks)) == self.config.nnodes
        for rank in range(self.config.world_size) if hooked else ():
            self.say(self.home(rank), messages.RankJoined(generation=1, rank=rank, pid=1000 + rank))
        self.heartbeat(step=commit_step, commit_step=commit_step)
        assert self.state.phase is Phase.RUN

    def heartbeat(self, *, step: int, commit_step: int = NO_STEP, nodes: Sequence[int] = ()) -> None:
        for node in nodes or range(len(self.state.roster.nodes)):
            ranks = self.state.roster.of_node(f"node{node}")
            progress = tuple(
                messages.RankProgress(
                    rank=rank.rank, pid=rank.pid or 1000 + rank.rank, step=step, commit_step=commit_step, steps_done=step,
                    exposed_stall_s=0.5,
                )
                for rank in ranks if rank.present
            )  # fmt: skip
            self.say(node, messages.Heartbeat(generation=self.state.generation, ranks=progress))

    def exits(self, rank: int, exit_code: int, *, signal: int = 0, **fields: Any) -> None:
        known = self.state.roster.ranks[rank]
        generation = fields.pop("generation", self.state.generation)
        exited = messages.RankExited(
            generation=generation, rank=rank, pid=fields.pop("pid", known.pid), exit_code=exit_code, signal=signal, **fields
        )
        self.say(self.home(rank), exited)

    def killed(self, rank: int, **fields: Any) -> None:
        self.exits(rank, 137, signal=9, **fields)

    def prepare(
        self,
        *ranks: int,
        live_step: int = NO_STEP,
        commit_step: int = NO_STEP,
        live_generation: int = 1,
        yielded: int = NO_STEP,
    ) -> None:
        for rank in ranks:
            prepared = messages.RankPrepared(
                generation=self.state.generation,
                rank=rank,
                live_generation=live_generation if live_step != NO_STEP else 0,
                live_step=live_step,
                commit_step=commit_step,
                yielded=yielded,
            )
            self.say(self.home(rank), prepared)

    def report(self, node: int, *slots: Slot) -> None:
        self.say(node, messages.VaultReport(generation=self.state.generation, slots=slots))

    def open_store(self) -> None:
        """The node that was asked last opens its store."""
        asked = [each for each in self.commands if isinstance(each, SendOrder) and isinstance(each.order, messages.OpenStore)]
        opened = messages.StoreOpened(generation=self.state.generation, host="h", port=8)
        self.say(int(asked[-1].node_id.removeprefix("node")), opened)

    def bring_up(self, step: int) -> None:
        """Every rank reforms, restores and resumes."""
        generation = self.state.generation
        for rank in range(self.config.world_size):
            home = self.home(rank)
            self.say(home, messages.RankReformed(generation=generation, rank=rank))
            self.say(home, messages.RankRestored(generation=generation, rank=rank, step=step, bytes_restored=0))
            at_ns = int(self.now_s * 1e9)
            self.say(home, messages.RankResumed(generation=generation, rank=rank, step=step + 1, at_ns=at_ns))

    def recover(self, *, step: int, survivors: Sequence[int], joiners: Sequence[int], generation: int = 1) -> messages.Reform:
        """From Quiesce to the plan, all on a committed step made in `generation`; returns one of the plan's orders."""
        self.open_store()
        self.prepare(*survivors, live_step=step, commit_step=step, live_generation=generation)
        self.prepare(*joiners)
        for node in self.state.roster.live():
            self.report(node.index, *self.vault(node.index, step, generation))
        return self.took(messages.Reform)[-1][1]

    def vault(self, node: int, step: int, generation: int = 1) -> list[Slot]:
        """Returns what a node of the first start holds: its ranks' snapshots, its neighbour's replicas; a spare holds nothing."""
        if node >= self.config.nnodes:
            return []
        nproc = self.config.nproc_per_node
        own, other = node, (node - 1) % self.config.nnodes
        held = [snapshot(own * nproc + local, step, generation) for local in range(nproc)]
        return held + [replica(other * nproc + local, step, generation) for local in range(nproc)]

    # ------------------------------------------------------------ what came out

    def home(self, rank: int) -> int:
        return int(self.state.roster.ranks[rank].node_id.removeprefix("node"))

    def present(self, node: int) -> list[Rank]:
        """Returns the node's ranks that have a process."""
        return [rank for rank in self.state.roster.of_node(f"node{node}") if rank.present]

    def took(self, kind: type[OrderKind]) -> list[tuple[int, OrderKind]]:
        """Returns (node, order) for each order of that kind since the last call of `took`, `forget` or of the scene's start."""
        found: list[tuple[int, OrderKind]] = [
            (int(each.node_id.removeprefix("node")), each.order)
            for each in self.commands[self._read :]
            if isinstance(each, SendOrder) and isinstance(each.order, kind)
        ]
        return found

    def forget(self) -> None:
        """Orders so far are not looked at any more."""
        self._read = len(self.commands)

    def notes(self, event: str) -> list[Note]:
        return [each for each in self.commands if isinstance(each, Note) and each.event == event]

    def end(self) -> EndJob:
        (end,) = [each for each in self.commands if isinstance(each, EndJob)]
        return end

    def has_quit(self) -> bool:
        return any(isinstance(each, Quit) for each in self.commands)

    @property
    def last_event_id(self) -> int:
        return self._event_id

    def handle(self, event: Event) -> None:
        """An event as it is, with an id of its own."""
        self._do(event)

    def _do(self, event: Event) -> None:
        self.past.append((event, self.now_s))
        self.commands += addressed(self.job.handle(event, now_s=self.now_s), self.state)
        self._validate()

    def _next_id(self) -> int:
        self._event_id += 1
        return self._event_id


def too_often(failures: int) -> str:
    """Returns the failure rules under which a node that has failed so many times is not trusted any more."""
    return f"""[[rule]]
name = "too-often"
class = "permanent"
event = ["exit", "signal", "hang", "late"]
failures_on_node = {failures}
"""


def snapshot(rank: int, step: int, generation: int = 1, peers: Sequence[Sequence[int]] = (), digest: int = 0) -> Slot:
    sets = tuple(messages.RankSet(ranks=tuple(each), digest=digest) for each in peers)
    return Slot(kind=SlotKind.SNAPSHOT, rank=rank, generation=generation, step=step, peer_sets=sets)


def replica(rank: int, step: int, generation: int = 1, peers: Sequence[Sequence[int]] = (), digest: int = 0) -> Slot:
    return replace(snapshot(rank, step, generation, peers, digest), kind=SlotKind.REPLICA)
