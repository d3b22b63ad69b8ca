"""The step loop of a protected rank: which attempts of steps are complete, and what happens at a boundary.

    attempt of step k --complete--> the step is yielded, the script's loop body runs --> S_k+1 is handed to the protect thread
           |                                      |
           |                                      +--it needs a call of a broken generation--> the process is replaced
           +--the generation broke--> discarded; a recovery (recovery.py), then on from the plan's step

A joiner's first two attempts are its rehearsal, with muted groups; then it goes through the same recovery as everybody else.
"""

import logging
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from statistics import median
from types import MethodType
from typing import Any

from torch.optim import Optimizer

from deadpool.host.console import tell
from deadpool.host.errors import ConfigError, SnapshotError, UnavailableError
from deadpool.proto.call_record import Head
from deadpool.proto.messages import RankResumed
from deadpool.proto.vault.layout import Tables
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.checkpoints.format import restore_tables
from deadpool.trainer_hooks.checkpoints.resume import agree
from deadpool.trainer_hooks.data.batches import BATCHES, FromLoader, batches_of
from deadpool.trainer_hooks.ddp_reducers import DDP, DdpReducers
from deadpool.trainer_hooks.drill.drill import DrilledRank
from deadpool.trainer_hooks.loop import ONE_LOOP, Attempt, Value
from deadpool.trainer_hooks.protection.controller import Protection
from deadpool.trainer_hooks.protection.copy_engine import Engine
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.description import Description
from deadpool.trainer_hooks.protection.restore import restore_from
from deadpool.trainer_hooks.protocol import REHEARSALS, RankPhase
from deadpool.trainer_hooks.recovery import Recovery
from deadpool.trainer_hooks.session import Session
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
        self._reducers = DdpReducers(state.models)
        if self._reducers:
            state.extra = {**state.extra, DDP: self._reducers}
        self._protection = Protection(session, state, engine, on_commit=lambda: self._write_record(self.next_step))
        self._recovery = Recovery(session, state, self._protection, self._reducers)
        self._drill = DrilledRank(session, state)
        self._opened = False
        self._rehearsing = False
        self._resumed_from: Path | None = None
        self._settled = True
        self._loaded: tuple[Tables, dict[str, bytearray]] | None = None
        self._resumed_sent = True
        self._step_began_ns = 0
        self._durations_ns: deque[int] = deque(maxlen=15)
        self._steps_done = 0
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

    # ------------------------------------------------------------ the loop

    def run(self, train_step: Callable[[int], Value], *, until: int, start: int = 0) -> Iterator[tuple[int, Value]]:
        self._drill.step_function = train_step
        self.begin(start=start, until=until)
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
        start: int = 0,
        accumulate: int = 1,
        epochs_apart: bool = False,
        rehearse: bool = False,
    ) -> Steps:
        batches = batches_of(loader, accumulate, epochs_apart=epochs_apart)
        if isinstance(batches, FromLoader):
            self._state.extra = {**self._state.extra, BATCHES: batches}
        return Steps(self, batches, start=start, until=until, rehearse=rehearse)

    def begin(self, *, start: int = 0, until: int, rehearse: bool = True) -> None:
        if self._opened:
            raise ConfigError(ONE_LOOP)
        self._opened = True
        if not rehearse:
            self._member.attempts = REHEARSALS
        if self._member.phase is RankPhase.REHEARSE and not rehearse:
            self._recover()
            return
        if self._member.phase is RankPhase.REHEARSE:
            self._rehearsing = True
            self.next_step = max(start, min(self._session.role.hint_step, until - 1))
            return
        start = self._resume(start)
        self.next_step = start
        with self._session.changed:
            self._member.begun(start)
        if start > 0 and not rehearse and not self._settled:
            self._session.refuse(NOT_WITHOUT_REHEARSAL)
        is_protected = self._protection.first(StateId(generation=self._session.role.generation, step=start))
        if is_protected and start > 0 and rehearse:
            self._rehearsing = True  # resumed from a file: without it DDP would sum in another order than before
            self._session.open().rehearse(True)

    def step(self) -> Attempt:
        assert self._opened, "call begin() first"
        return Attempt(self, self.next_step)

    def finish(self) -> bool:
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
        if not completed:
            self._leave()
            return False, False
        now_ns = time.monotonic_ns()
        self._durations_ns.append(now_ns - self._step_began_ns)
        self._steps_done += 1
        self.next_step = step + 1
        if not self._resumed_sent:
            self._resumed_sent = True
            self._session.send(RankResumed(generation=self._member.running, rank=self._session.rank, step=step + 1, at_ns=now_ns))
        return True, False

    def _body_ended(self) -> None:
        """The script comes back for the next step: the state is whole. Without effect when it was not in a loop body."""
        with self._session.changed:
            whole = self._member.had()
        if whole:
            self._protection.protect()
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
            self._protection.protect()
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
        if not (self._settled and self._protection.restore_own()):
            self._load()
        self._reducers.settle()
        with self._session.changed:
            self._member.dirty = False
        self._rehearsing = False
        self._session.open().rehearse(False)

    def _resume(self, start: int) -> int:
        """Returns the step of the persistent checkpoint that the process holds from now on, `start` where there is none."""
        session, role = self._session, self._session.role
        with session.changed:
            self._member.dirty = True  # until it is known what the process should hold, it holds nothing
        try:
            store = session.connect_store(role.store_host, role.store_port)
            keeping, rank, world_size = session.keeping, session.rank, session.world_size
            found = agree(store, keeping, rank, world_size, role.generation, session.cancelled, self._read)
        except UnavailableError as error:
            session.trouble(role.generation, error)
            return start
        except ConfigError as error:
            session.refuse(str(error))
            raise
        if found is not None:
            self._resumed_from = found.path
            assert self._loaded is not None
            restore_from(self._state, *self._loaded)
            self._loaded = None
            self._settled = self._settle_early()
            log.warning("rank %d resumes at step %d from %s", session.rank, found.step, found.path)
        with session.changed:
            self._member.dirty = False
        return start if found is None else found.step

    def _settle_early(self) -> bool:
        """Returns whether all DDPs are as the checkpoint has recorded them: the first state then says so as well.

        One that can only be brought there by the steps of a rehearsal is not.
        """
        self._session.open().rehearse(True)
        try:
            self._reducers.settle()
        except SnapshotError as error:
            log.info("%s: once it has rehearsed", error)
            return False
        finally:
            self._session.open().rehearse(False)
        return True

    def _read(self, path: Path) -> None:
        """Reads what the persistent checkpoint holds of this rank. SnapshotError when it is bad."""
        self._loaded = restore_tables(path, self._session.rank)

    def _load(self) -> None:
        """Makes the process hold once more what it has resumed from."""
        assert self._resumed_from is not None
        restore_from(self._state, *restore_tables(self._resumed_from, self._session.rank))

    def _wrap(self, optimizer: Optimizer) -> None:
        """Puts the fence in front of this optimizer's step, and makes it do nothing in a broken generation."""
        step = optimizer.step
        state = self._state

        @wraps(step)
        def guarded(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
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
        plan = self._recovery.run()
        self.next_step = plan.resume_step
        self._resumed_sent = False
        self._protection.again(plan)

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
                )
            )
