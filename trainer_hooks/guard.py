"""The step loop of a protected rank: which attempts of steps are complete, and what happens at a boundary.

    attempt of step k --complete--> the step is yielded, the script's loop body runs --> S_k+1 is handed to the protect thread
           |                                      |
           |                                      +--it needs a call of a broken generation--> the process is replaced
           +--the generation broke--> discarded; a recovery (recovery.py), then on from the plan's step

A joiner's first two attempts are its rehearsal, with muted groups; then it goes through the same recovery as everybody else. It
makes them in the loop that has the state from which it will probably go on, and passes those before it; so does a process that
resumes from a checkpoint. A loop that follows another begins once every rank has come to it.
"""

import logging
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from statistics import median
from types import MethodType
from typing import Any, SupportsFloat

from torch.optim import Optimizer

from deadpool.host.console import tell
from deadpool.proto.call_record import TOKENS, Head
from deadpool.proto.messages import RankResumed
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.data.batches import BATCHES, FromLoader, batches_of
from deadpool.trainer_hooks.ddp_reducers import DDP, DdpReducers
from deadpool.trainer_hooks.drill.drill import DrilledRank
from deadpool.trainer_hooks.loop import Attempt, Loops, Value
from deadpool.trainer_hooks.protection.controller import Protection
from deadpool.trainer_hooks.protection.copy_engine import Engine
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.description import Description
from deadpool.trainer_hooks.protocol import RankPhase
from deadpool.trainer_hooks.recovery import Recovery
from deadpool.trainer_hooks.reports import Reports
from deadpool.trainer_hooks.session import Session
from deadpool.trainer_hooks.start_state import StartState
from deadpool.trainer_hooks.state.training_state import TrainingState
from deadpool.trainer_hooks.steps import Steps

log = logging.getLogger(__name__)
NOT_WITHOUT_REHEARSAL = (
    "guard.steps(): a DDP of this training comes to sum its gradients in the recorded order only by steps: use rehearse=True"
)


class RankGuard:
    """Protects one training state, as loop.Guard says. ConfigError when a model cannot be brought back as it was."""

    def __init__(self, session: Session, state: TrainingState, optimizers: list[Optimizer], engine: Engine) -> None:
        self.next_step = 0
        self._session, self._state = session, state
        self._member = session.member
        self._reducers = reducers = DdpReducers(state.models)
        if reducers:
            state.extra = {**state.extra, DDP: reducers}
        self._protection = Protection(session, state, engine, on_commit=self._write_commit)
        self._recovery = Recovery(session, state, self._protection, reducers)
        self._start_state = StartState(session, state, self._protection, reducers)
        self._drill = DrilledRank(session, state)
        self._loops = Loops()
        self._goal: int | None = None  # the step of the state from which to go on; None: not known yet
        self._passing = False  # through the present loop, and what follows it
        self.catching_up = session.role.muted
        self._rehearsing = False
        self._resumed_sent = True
        self._step_began_ns = 0
        self._durations_ns: deque[int] = deque(maxlen=15)
        self._steps_done = 0
        self._in_calls_ns = self._stepped_ns = self._waited_ns = 0
        self._reports = Reports(session.record.report)
        for optimizer in optimizers:
            self._wrap(optimizer)

    @property
    def counters(self) -> Counters:
        return self._protection.counters

    @property
    def protecting(self) -> bool:
        return self._protection.on

    @protecting.setter
    def protecting(self, on: bool) -> None:
        self._protection.on = on

    def describe(self) -> Description:
        return self._protection.describe()

    def report(
        self, *, loss: SupportsFloat | None = None, tokens: SupportsFloat | None = None, **numbers: SupportsFloat | None
    ) -> None:
        if self.live:
            self._reports.add({"loss": loss, TOKENS: tokens, **numbers})

    # ------------------------------------------------------------ the loop

    def run(self, train_step: Callable[[int], Value], *, until: int, start: int | None = None) -> Iterator[tuple[int, Value]]:
        self._drill.step_function = train_step
        self.begin(until=until, start=start)
        until = self._loops.until
        try:
            while True:
                while self.next_step < until:
                    step = self.next_step
                    with self.step() as attempt:
                        value = self._drill.returned = train_step(step)
                    if attempt.completed and self._member.yields:
                        yield step, value
                    self._body_ended()
                    self._leave_if_broken()
                if self.finish():
                    return
        except GeneratorExit:
            self._left()
            raise

    def steps(
        self,
        loader: Any,
        *,
        until: int,
        start: int | None = None,
        accumulate: int = 1,
        epochs_apart: bool = False,
        rehearse: bool = False,
    ) -> Steps:
        self._drill.loader = loader
        batches = batches_of(loader, accumulate, epochs_apart=epochs_apart)
        if isinstance(batches, FromLoader):
            self._state.extra = {**self._state.extra, BATCHES: batches}
        return Steps(self, batches, start=start, until=until, rehearse=rehearse)

    def begin(self, *, until: int, start: int | None = None, rehearse: bool = True) -> None:
        self._loops.begin(start, until)
        self._session.first_values_end(self._state.held)
        if not self._loops.is_first and not self._passing:
            self._begin_next()
            return
        if self._goal is None:
            self._goal = self._session.role.hint_step + 1 if self.catching_up else self._start_state.choose(self._loops.start)
        self._passing = self._goal > self._loops.until
        if self._passing:
            self._pass_by()
            return
        rehearsals = self._steps_to_rehearse() if rehearse else 0
        with self._session.changed:
            self._stand_in()
            self._member.rehearsals = rehearsals
        if self._member.phase is not RankPhase.REHEARSE:
            self._begin_live(self._goal, rehearse=rehearse)
        elif rehearse:
            self._rehearse(self._goal - 1)
        else:
            self._recover()

    def step(self) -> Attempt:
        assert self._loops.number, "call begin() first"
        return Attempt(self, self.next_step)

    def finish(self) -> bool:
        if self._passing:
            self._loops.ended(self.next_step)
            return True
        self._body_ended()
        step = self.next_step
        session, member = self._session, self._member
        self._write_record(step)
        self._drill.hold(step, self._protection.wait_done)
        self._protection.wait_done(step)
        with session.changed:
            session.carry_out(member.finished(step))
            session.changed.wait_for(lambda: member.phase not in (RankPhase.FINISHED,))
            if member.phase is RankPhase.RELEASED:
                self._loops.ended(step)
                return True
        self.next_step = max(0, step - 1)  # if it has to be attempted, for _leave()
        self._leave()
        return False

    # ------------------------------------------------------------ the iterator form (steps.py)

    @property
    def live(self) -> bool:
        return self._member.phase is RankPhase.RUN and not self._rehearsing

    def ended(self) -> None:
        self._body_ended()
        self._leave_if_broken()

    def given(self, batches: Any) -> bool:
        self._drill.returned = batches
        return self._member.phase is not RankPhase.BROKEN or not self._member.rehearsed

    def left_in_step(self) -> None:
        session = self._session
        if self._rehearsing:
            tell(f"deadpool: rank {session.rank} has left its step loop in a rehearsal, where nothing that it sees is real")
            os._exit(1)
        with session.changed:
            session.carry_out([] if session.closed else self._member.left_in_step(self.next_step))
        session.muted_call()

    def script_failed(self, error: Exception) -> None:
        with self._session.changed:
            if self._member.phase is RankPhase.RUN:
                self._say_raised(error)

    # ------------------------------------------------------------ one attempt

    def begin_attempt(self, step: int) -> None:
        self._body_ended()
        if not self._rehearsing:
            self._drill.hold(step, self._protection.wait_done)
            self._drill.begins(step)
        self._state.step_begins()
        self._reports.step_begins()
        self._in_calls_ns = self._session.open().call_time.total_ns()
        self._step_began_ns = time.monotonic_ns()
        self._write_record(step)

    def end_attempt(self, step: int, error: Exception | None) -> tuple[bool, bool]:
        if self._rehearsing and self._member.phase is not RankPhase.BROKEN:
            if error is None:
                self._member.attempted()
                self._rehearsed()
            return False, error is not None
        self._member.attempted()
        with self._session.changed:
            if error is not None and self._member.phase is not RankPhase.BROKEN:
                self._say_raised(error)
                return False, True
            completed = error is None and self._member.boundary(step)
        self._reports.step_ends(completed=completed)
        if not completed:
            self._leave()
            return False, False
        now_ns = time.monotonic_ns()
        self._step_took(now_ns - self._step_began_ns)
        self._steps_done += 1
        self.next_step = step + 1
        if not self._resumed_sent:
            self._resumed_sent = True
            self._session.send(RankResumed(generation=self._member.running, rank=self._session.rank, step=step + 1, at_ns=now_ns))
        return True, False

    def _step_took(self, duration_ns: int) -> None:
        calls = self._session.open().call_time
        self._durations_ns.append(duration_ns)
        self._stepped_ns += duration_ns
        self._waited_ns += min(duration_ns, calls.total_ns() - self._in_calls_ns)
        if not calls.known:
            self._waited_ns = -1

    def _body_ended(self) -> None:
        """The script comes back for the next step: the state is whole. Without effect when it was not in a loop body."""
        with self._session.changed:
            whole = self._member.had()
        if whole:
            self._protection.protect(needed=self._loops.needs(self.next_step))
            self._drill.completed(self.next_step)

    def _leave_if_broken(self) -> None:
        """Between two attempts: one that would only be discarded is not made."""
        with self._session.changed:
            broken = self._member.phase is RankPhase.BROKEN
        if broken:
            self._leave()

    def _left(self) -> None:
        """The script has left the loop. What it does now still belongs to the body of the last step, whose state is kept safe."""
        with self._session.changed:
            actions = [] if self._session.closed else self._member.left()
        if actions:
            self._protection.protect(needed=True)
        with self._session.changed:
            self._session.carry_out(actions)

    def _say_raised(self, error: Exception) -> None:
        """Before the process exits, which takes a while, and breaks its peers' connections on the way."""
        text = "".join(traceback.format_exception_only(error)).strip()
        self._session.carry_out(self._member.exits(text))

    def _rehearsed(self) -> None:
        self._state.zero_gradients()
        if not self._member.rehearsed:
            return
        if self._member.phase is RankPhase.REHEARSE:
            self._recover()
            return
        self._start_state.take_up_again()
        self._rehearsing = self.catching_up = False
        self._session.open().rehearse(False)
        assert self._goal is not None
        self.next_step = self._goal

    # ------------------------------------------------------------ into a loop

    def _steps_to_rehearse(self) -> int:
        """Returns how many: one, for what the script does once in a process; more where only steps bring a DDP to its layout."""
        joins = self._member.phase is RankPhase.REHEARSE
        if joins and self._reducers.settled_as(self._session.inherited.get(DDP)):
            return 1
        return max(1, self._reducers.steps_to_layout())

    def _stand_in(self) -> None:
        self._member.stands_in(start=self._loops.start, until=self._loops.until, first=self._loops.is_first)
        self._session.behind = ""

    def _pass_by(self) -> None:
        if not self._session.behind:
            log.warning(
                "rank %d goes on from about step %s: what the script does between its loops up to there runs before this process "
                "has caught up (guard.catching_up)",
                self._session.rank,
                self._goal,
            )
        self._session.behind = f"the script has ended, and no loop of it has step {self._goal}, from which it was to go on"
        self.catching_up = True
        self.next_step = self._loops.until

    def _begin_live(self, step: int, *, rehearse: bool) -> None:
        """Of ranks that start together: all begin with S_step, from nothing or from a checkpoint."""
        self._start_state.take_up()
        self.next_step = step
        with self._session.changed:
            self._member.begun(step)
        if step > 0 and not rehearse and not self._start_state.settled:
            self._session.refuse(NOT_WITHOUT_REHEARSAL)
        if step > 0 and rehearse and self._start_state.settled:
            self._member.rehearsals = 1
        safe = self._protection.first(StateId(generation=self._session.role.generation, step=step))
        if safe and step > 0 and rehearse and self._loops.start < self._loops.until:
            self._rehearse(step)  # without it DDP would sum in another order than before
            self._session.open().rehearse(True)
        elif safe:
            self.catching_up = False

    def _begin_next(self) -> None:
        """The loop goes on from the end of the last one, and from what the script has done since. All ranks begin it together."""
        session, member = self._session, self._member
        with session.changed:
            session.carry_out(member.reopened())
            session.changed.wait_for(lambda: member.phase is RankPhase.RUN)  # else this process is replaced
            self._stand_in()
        self._protection.changed_by_script()
        self.next_step = self._loops.start

    def _rehearse(self, step: int) -> None:
        """The next attempts are a rehearsal: at that step, or the nearest one in this loop."""
        self._rehearsing = True
        self.next_step = max(self._loops.start, min(step, self._loops.until - 1))

    def _wrap(self, optimizer: Optimizer) -> None:
        """Puts the fence in front of this optimizer's step, and makes it do nothing in a broken generation."""
        step = optimizer.step
        state = self._state

        @wraps(step)
        def guarded(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self.live:
                self._session.injections.hold(self._session.record, self.next_step, self._session.cancelled)
            self._session.injections.in_step()
            self._protection.fence()
            with self._session.changed:
                go = self._member.optimizer_began()
            if go:
                state.optimizer_steps(optimizer)
                return step(*args, **kwargs)
            self._session.muted_call()
            return None

        optimizer.step = MethodType(guarded, optimizer)  # type: ignore[method-assign]  # schedulers wrap methods only

    # ------------------------------------------------------------ recovery

    def _leave(self) -> None:
        """Leaves a broken generation by recovering, once this process has made the attempts of a rehearsal."""
        self._state.zero_gradients()
        if self._member.rehearsed:
            self._recover()

    def _recover(self) -> None:
        """Returns with S_next_step in the process, protected in the newest generation."""
        self._rehearsing = False
        self._drill.joins()
        plan = self._recovery.run()
        self.catching_up = False
        self.next_step = plan.resume_step
        self._resumed_sent = False
        self._protection.again(plan)

    def _write_commit(self) -> None:
        """A commit is known: the rest of the record stays as the training has written it."""
        with self._session.changed:
            self._session.record.write_commit(self._member.commit_step)

    def _write_record(self, step: int) -> None:
        with self._session.changed:
            self._session.record.write_head(
                Head(
                    pid=os.getpid(),
                    generation=self._member.running,
                    step=step,
                    step_began_ns=self._step_began_ns,
                    steps_done=self._steps_done,
                    commit_step=self._member.commit_step,
                    stall_ns=int(self.counters.exposed_stall_s * 1e9),
                    typical_step_ns=int(median(self._durations_ns)) if self._durations_ns else 0,
                    yielded=self._member.yielded,
                    until=self._loops.until,
                    stepped_ns=self._stepped_ns,
                    waited_ns=self._waited_ns,
                    replicated_bytes=self.counters.replicated_bytes,
                    interval=self._protection.interval,
                    busy_ns=int(self._protection.busy_s * 1e9),
                )
            )
