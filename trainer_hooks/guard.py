"""The step loop of a protected rank: which steps are complete, what happens at a boundary, and the way through a recovery.

    attempt of step k --complete--> S_k+1 is handed to the protect thread, the step is yielded
           |
           +--the generation broke--> discarded: quiesce, report, wait for the plan, reform, restore, on from the plan's step

A joiner's first two attempts are its rehearsal, with muted groups; then it goes through the same recovery as everybody else.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial, wraps
from statistics import median
from threading import Event
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from torch._C._distributed_c10d import Store
from torch.optim import Optimizer

from deadpool.proto.call_record import Head
from deadpool.proto.errors import ConfigError, DeadpoolError, SnapshotError, UnavailableError
from deadpool.proto.messages import (
    NO_STEP,
    BadCopy,
    Placement,
    ProtectionChanged,
    RankReformed,
    RankRestored,
    RankResumed,
    Reform,
    Source,
    SourceKind,
    StateDiffers,
)
from deadpool.proto.slots import StateId
from deadpool.trainer_hooks.checkpoint import restore_tables
from deadpool.trainer_hooks.commit import CommitBoard
from deadpool.trainer_hooks.engine import Engine
from deadpool.trainer_hooks.member import Phase
from deadpool.trainer_hooks.protect import Boundary, Counters, Protector, layout_of
from deadpool.trainer_hooks.replicate import VaultClient
from deadpool.trainer_hooks.restore import BadCopiesError, Restored, from_own_slot, from_replica, restore_from
from deadpool.trainer_hooks.resume import agree
from deadpool.trainer_hooks.session import Session
from deadpool.trainer_hooks.sizes import expected_growth
from deadpool.trainer_hooks.state import TrainingState, check_meta, pack_meta
from deadpool.trainer_hooks.turn import Turn
from deadpool.trainer_hooks.unique import Peers, exchange
from deadpool.trainer_hooks.vault import OwnSlots, capacity
from deadpool.trainer_hooks.verify import Verdict, Verifier

log = logging.getLogger(__name__)

Value = TypeVar("Value")
REFORM_TIMEOUT_S = 25.0
REHEARSALS = 2  # DDP rebuilds its buckets in its second forward, once; kernels compile and allocators warm up in the first


class Attempt:
    """One try of one step, as a context manager. `completed` is known after the block: False means try `guard.next_step`."""

    def __init__(self, loop: "Loop", step: int) -> None:
        self.step = step
        self.completed = False
        self._loop = loop

    def __enter__(self) -> "Attempt":
        self._loop.begin_attempt(self.step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[True] | None:
        if error is not None and not isinstance(error, Exception):
            return None
        self.completed, propagate = self._loop.end_attempt(self.step, error)
        return None if propagate else True


class Loop(Protocol):
    """What a guard does around an attempt."""

    def begin_attempt(self, step: int) -> None: ...

    def end_attempt(self, step: int, error: Exception | None) -> tuple[bool, bool]:
        """Returns (completed, whether the error is the script's own and must be raised)."""


class Guard:
    """Protects one training state. Use `run`, or `step` in a loop of your own. All methods are for the main thread."""

    def __init__(self, session: Session, state: TrainingState, optimizers: list[Optimizer], engine: Engine) -> None:
        self.next_step = 0
        self.counters = Counters()
        self.protecting = True  # False: no snapshots are taken (for measurements); a failure then goes back to the last one
        self._session, self._state, self._engine = session, state, engine
        self._member = session.member
        self._opened = False
        self._rehearsing = False
        self._attempts = 0  # of this process, ended ones, whatever came of them
        self._yielded = 0
        self._resumed_sent = True
        self._placement: Placement = session.role.placement
        self._peers: Peers = {}
        self._boundary: Boundary | None = None
        self._bad_copies: tuple[BadCopy, ...] = ()
        self._protector: Protector | None = None
        self._slots: OwnSlots | None = None
        self._step_began_ns = 0
        self._durations_ns: deque[int] = deque(maxlen=15)
        self._steps_done = 0
        for optimizer in optimizers:
            self._wrap(optimizer)

    # ------------------------------------------------------------ the loop

    def run(self, train_step: Callable[[int], Value], *, until: int, start: int = 0) -> Iterator[tuple[int, Value]]:
        """Yields (step, train_step(step)) for each completed step in [start, until), each once in this process's life.

        train_step(k) takes the training from S_k to S_k+1 with one optimizer step. It may run again after a failure, with the
        same state and random numbers, so it must depend on nothing else that changes.
        """
        self.begin(start=start, until=until)
        while True:
            while self.next_step < until:
                step = self.next_step
                with self.step() as attempt:
                    value = train_step(step)
                if attempt.completed and step >= self._yielded:
                    self._yielded = step + 1
                    yield step, value
            if self.finish():
                return

    def begin(self, *, start: int = 0, until: int) -> None:
        """Enters the loop with S_start in the process. Returns once it is protected (a joiner: at once)."""
        assert not self._opened, "the loop was entered before"
        self._opened = True
        if self._member.phase is Phase.REHEARSE:
            self._rehearsing = True
            self.next_step = max(start, min(self._session.role.hint_step, until - 1))
            return
        start = self._resume(start)
        self.next_step = self._yielded = start
        with self._session.changed:
            self._member.begun(start)
        if self._first_protection(StateId(generation=self._session.role.generation, step=start)) and start > 0:
            self._rehearsing = True  # resumed from a file: without it DDP would sum in another order than before
            self._groups.rehearse(True)

    def step(self) -> Attempt:
        """Returns the context for one attempt of `next_step`."""
        assert self._opened, "call begin() first"
        return Attempt(self, self.next_step)

    def finish(self) -> bool:
        """Returns True when every rank has finished; False when a recovery has led back behind the end (`next_step`)."""
        step = self.next_step
        session, member = self._session, self._member
        if self._protector is not None and self.protecting:
            self._protector.wait_commit(step)
        with session.changed:
            session.carry_out(member.finished(step))
            session.changed.wait_for(lambda: member.phase not in (Phase.FINISHED,))
            if member.phase is Phase.RELEASED:
                return True
        self.next_step = max(0, step - 1)  # if it has to be attempted, for _leave()
        self._leave()
        return False

    # ------------------------------------------------------------ one attempt

    def begin_attempt(self, step: int) -> None:
        self._step_began_ns = time.monotonic_ns()
        self._write_record(step)

    def end_attempt(self, step: int, error: Exception | None) -> tuple[bool, bool]:
        if self._rehearsing and self._member.phase is not Phase.BROKEN:
            if error is None:
                self._attempts += 1
                self._rehearsed()
            return False, error is not None
        self._attempts += 1
        with self._session.changed:
            if error is not None and self._member.phase is not Phase.BROKEN:
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
        self._protect()
        return True, False

    def _rehearsed(self) -> None:
        self._state.zero_gradients()
        if self._attempts < REHEARSALS:
            return
        if self._member.phase is Phase.REHEARSE:
            self._recover()
            return
        assert self._slots is not None
        assert self._member.live is not None
        from_own_slot(self._state, self._slots, self._member.live, self._session.node_id)
        with self._session.changed:
            self._member.dirty = False
        self._rehearsing = False
        self._groups.rehearse(False)

    def _wrap(self, optimizer: Optimizer) -> None:
        """Puts the fence in front of this optimizer's step, and makes it do nothing in a broken generation."""
        step = optimizer.step

        @wraps(step)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self._session.strikes.in_step()
            if self._protector is not None:
                self._protector.fence()
            with self._session.changed:
                go = self._member.optimizer_began()
            return step(*args, **kwargs) if go else None

        optimizer.step = guarded  # type: ignore[method-assign]

    # ------------------------------------------------------------ protection

    @property
    def _groups(self) -> Any:
        assert self._session.groups is not None
        return self._session.groups

    def _first_protection(self, state: StateId) -> bool:
        """Reserves the vault, protects the first state and returns True once it is committed; False when the generation broke."""
        role = self._session.role
        self._capture(state)
        assert self._boundary is not None
        check_meta(self._boundary.meta)
        try:
            self._reserve()
            steps = range(state.step, state.step + 3)
            self._start_protector(role.store_host, role.store_port, NO_STEP, steps)
        except UnavailableError as error:
            self._session.trouble(role.generation, error)
            return False
        assert self._protector is not None
        self._protector.submit(self._boundary)
        return self._protector.wait_commit(state.step)

    def _resume(self, start: int) -> int:
        """Returns the step of the persistent checkpoint that the process holds from now on, `start` where there is none."""
        session, role = self._session, self._session.role
        with session.changed:
            self._member.dirty = True  # until it is known what the process should hold, it holds nothing
        try:
            store = session.connect_store(role.store_host, role.store_port)
            found = agree(store, session.keeping, session.rank, session.world_size, role.generation, session.cancelled)
        except UnavailableError as error:
            session.trouble(role.generation, error)
            return start
        except ConfigError as error:
            session.refuse(str(error))
            raise
        if found is not None:
            try:
                tables, data = restore_tables(found.path, session.rank)
            except SnapshotError as error:
                session.refuse(f"{error}; choose another with --resume PATH, or --resume never")
                raise
            restore_from(self._state, tables, data)
            log.warning("rank %d resumes at step %d from %s", session.rank, found.step, found.path)
        with session.changed:
            self._member.dirty = False
        return start if found is None else found.step

    def _reserve(self) -> None:
        """Has the slots made, with room for optimizer state that appears with the first step."""
        assert self._boundary is not None
        layout = layout_of(self._boundary.held, self._peers)
        items, growth_bytes = expected_growth(self._state.optimizers.values())
        meta_bytes = len(pack_meta(self._boundary.meta))
        snapshot_bytes, _ = capacity(layout.data_bytes + growth_bytes, len(layout.items) + items, meta_bytes)
        replica_bytes, _ = capacity(layout.unique_bytes + growth_bytes, len(layout.items) + items, meta_bytes)
        self._session.reserve(snapshot_bytes, replica_bytes if self._placement.holders else 0)
        self._slots = OwnSlots(self._session.vault_dir, self._session.rank, self._engine)

    def _start_protector(self, store_host: str, store_port: int, commit_step: int, exchange_steps: range) -> None:
        session, generation = self._session, self._member.running
        assert self._slots is not None
        store = session.connect_store(store_host, store_port)
        cancelled = session.cancelled
        self._protector = Protector(
            rank=session.rank,
            generation=generation,
            slots=self._slots,
            engine=self._engine,
            holders=[VaultClient(endpoint, session.token) for endpoint in self._placement.holders],
            board=CommitBoard(store, session.world_size, cancelled),
            exchange=lambda step, sums: exchange(
                store,
                step=step,
                rank=session.rank,
                world_size=session.world_size,
                node_id=session.node_id,
                sums=sums,
                cancelled=cancelled,
            ),
            exchange_steps=exchange_steps,
            peers=self._peers,
            commit_step=commit_step,
            counters=self.counters,
            cancelled=cancelled,
            on_commit=partial(self._commit_known, generation),
            on_trouble=partial(session.trouble, generation),
            turn=self._turn(store),
            verifier=self._verifier(store, cancelled),
            on_differing=partial(self._differs, generation),
        )
        with session.changed:
            session.on_cancel = self._protector.wake
            session.on_close = self._protector.close
            if cancelled.is_set():
                self._protector.wake()

    def _verifier(self, store: Store, cancelled: Event) -> Verifier | None:
        session, every = self._session, self._session.keeping.verify_every
        if not every:
            return None
        return Verifier(store, rank=session.rank, world_size=session.world_size, every=every, cancelled=cancelled)

    def _differs(self, generation: int, step: int, verdict: Verdict, discarded: bool) -> None:
        session = self._session
        repair = "discarded" if discarded else "none"
        session.send(
            StateDiffers(
                generation=generation, rank=session.rank, step=step, ranks=verdict.ranks, item=verdict.item, repair=repair
            )
        )
        if not discarded:
            reason = f"ranks {', '.join(map(str, verdict.ranks))} hold {verdict.item} otherwise than their peers"
            session.send(ProtectionChanged(generation=generation, rank=session.rank, step=step, reason=reason))

    def _turn(self, store: Store) -> Turn | None:
        every, slots = self._session.keeping.checkpoint_every, self._slots
        assert slots is not None
        return Turn(store, self._session.world_size, every, lambda: not slots.pinned()) if every else None

    def _commit_known(self, generation: int, step: int) -> None:
        with self._session.changed:
            self._member.commit_known(generation, step)
        self._write_record(self.next_step)

    def _capture(self, state: StateId) -> None:
        """Takes down S_k as it is now: what to copy, what it was copied from, metadata."""
        self._engine.at_boundary()
        held = self._state.held()
        self._boundary = Boundary(
            state=state,
            held=held,
            sources=[each.tensor.clone() if each.volatile else each.tensor for each in held],
            versions=[each.tensor._version for each in held],
            meta=self._state.capture_meta(),
        )

    def _protect(self) -> None:
        """Hands the state just completed to the protect thread."""
        if not self.protecting or self._protector is None or self._member.live is None:
            return
        self._protector.fence()  # a step without optimizer.step has not waited for the one before
        self._capture(self._member.live)
        assert self._boundary is not None
        self._protector.submit(self._boundary)

    # ------------------------------------------------------------ recovery

    def _leave(self) -> None:
        """Leaves a broken generation by recovering, once this process has made the attempts of a rehearsal.

        A rank that had not would rebuild DDP's buckets live, alone. Until then its attempts are muted and discarded.
        """
        self._state.zero_gradients()
        if self._attempts >= REHEARSALS:
            self._recover()

    def _recover(self) -> None:
        """Goes through recoveries until one succeeds: the process then holds S_next_step in the newest generation."""
        session, member = self._session, self._member
        clean = False
        if self._protector is not None:
            self._protector.quiesce()
        if self._boundary is not None and self._boundary.state == member.live:
            clean = self._boundary.unchanged()
        self._rehearsing = False
        with session.changed:
            session.carry_out(member.quiesced(clean=clean))
        while not self._carry_out(session.await_plan()):
            pass

    def _carry_out(self, plan: Reform) -> bool:
        session, member = self._session, self._member
        phase = "reform"
        try:
            store = session.connect_store(plan.store_host, plan.store_port)
            self._groups.rehearse(False)
            self._groups.reform(generation=plan.generation, store=store, timeout_s=REFORM_TIMEOUT_S, cancelled=session.cancelled)
            session.send(RankReformed(generation=plan.generation, rank=session.rank))
            phase = "restore"
            source = next(source for source in plan.sources if source.rank == session.rank)
            state, restored = self._restore(plan, source)
        except (DeadpoolError, RuntimeError, OSError) as error:
            log.warning("generation %d: %s failed: %s", plan.generation, phase, error)
            bad_copies = error.copies if isinstance(error, BadCopiesError) else ()
            self._bad_copies += bad_copies  # said again with RankRestored: a newer generation may keep this one from being heard
            with session.changed:
                session.carry_out(member.recovery_failed(plan, phase, str(error), bad_copies))
            if phase == "restore":
                self._groups.break_generation(plan.generation, str(error))  # they are open already, and will not be used
            return False
        with session.changed:
            if not member.restored(plan, state):
                session.carry_out(member.recovery_failed(plan, phase, "overtaken"))
                return False
            session.send(
                RankRestored(
                    generation=plan.generation,
                    rank=session.rank,
                    step=plan.resume_step,
                    bytes_restored=restored.bytes_restored,
                    bad_copies=(*self._bad_copies, *restored.bad_copies),
                )
            )
            self._bad_copies = ()
        self._go_on(plan)
        return True

    def _restore(self, plan: Reform, source: Source) -> tuple[StateId, Restored]:
        """Makes the process hold S_resume_step and returns its identity and what was moved for it."""
        wanted = StateId(generation=source.slot_generation, step=plan.resume_step)
        with self._session.changed:
            self._member.restoring(in_place=source.kind is SourceKind.LIVE)
        match source.kind:
            case SourceKind.LIVE:
                self._restore_live(wanted)
                return wanted, Restored(bytes_restored=0, peers=self._peers)
            case SourceKind.VAULT:
                self._slots = self._slots or OwnSlots(self._session.vault_dir, self._session.rank, self._engine)
                restored = from_own_slot(self._state, self._slots, wanted, self._session.node_id)
            case SourceKind.REPLICA:
                restored = from_replica(self._state, source, plan.resume_step, self._session.token)
        self._peers = restored.peers
        return wanted, restored

    def _restore_live(self, wanted: StateId) -> None:
        """The steady tensors are untouched; what a discarded step may have changed comes from the boundary."""
        boundary = self._boundary
        if boundary is None or boundary.state != wanted:
            raise SnapshotError(f"the process does not hold {wanted}")
        for held, source in zip(boundary.held, boundary.sources, strict=True):
            if held.volatile:
                held.tensor.copy_(source)
        self._state.restore_meta(boundary.meta)

    def _go_on(self, plan: Reform) -> None:
        """Protects the restored state in the new generation and resumes the loop."""
        os.environ.update(MASTER_ADDR=plan.store_host, MASTER_PORT=str(plan.store_port))
        self.next_step = plan.resume_step
        self._resumed_sent = False
        self._placement = next(place for place in plan.placements if place.rank == self._session.rank)
        assert self._member.live is not None
        self._capture(self._member.live)
        if self._slots is None or self._session.role.muted:
            self._reserve()
        steps = range(plan.resume_step + 1, plan.resume_step + 2)
        try:
            self._start_protector(plan.store_host, plan.store_port, self._member.commit_step, steps)
        except DeadpoolError as error:
            self._session.trouble(plan.generation, error)
            return
        assert self._protector is not None
        assert self._boundary is not None
        self._protector.submit(self._boundary)

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
                )
            )
