"""Keeping a rank's state safe while it trains: what is captured at a boundary, and the protect thread that copies it away."""

import logging
from collections.abc import Callable
from functools import partial
from threading import Event

from torch._C._distributed_c10d import Store

from deadpool.host.errors import ConfigError, DeadpoolError, SnapshotError, UnavailableError
from deadpool.proto.messages import NO_STEP, Placement, ProtectionChanged, Reform, StateDiffers
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.checkpoints.agreement import Turn
from deadpool.trainer_hooks.protection.commit import CommitBoard
from deadpool.trainer_hooks.protection.copy_engine import Engine
from deadpool.trainer_hooks.protection.peers import Peers, exchange
from deadpool.trainer_hooks.protection.pipeline import Boundary, Counters, Protector, layout_of
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.restore import from_own_slot
from deadpool.trainer_hooks.protection.schedule import SETTLING_STATES, Schedule
from deadpool.trainer_hooks.protection.sizes import expected_growth
from deadpool.trainer_hooks.protection.slots import OwnSlots, capacity
from deadpool.trainer_hooks.protection.state import TrainingState, check_meta, pack_meta
from deadpool.trainer_hooks.protection.verify import Verdict, Verifier
from deadpool.trainer_hooks.session import Session

log = logging.getLogger(__name__)
SWITCHED_OFF = "the script has switched it off (guard.protecting)"


class Protection:
    """Of one training state. All methods are for the main thread; `on_commit` is called from the protect thread.

    `on`: the script's wish. `boundary`: the state captured last. `peers`: who holds what as well.
    """

    def __init__(self, session: Session, state: TrainingState, engine: Engine, *, on_commit: Callable[[], None]) -> None:
        self.on = True
        self.counters = Counters()
        self.boundary: Boundary | None = None
        self.peers: Peers = {}
        self._session, self._state, self._engine = session, state, engine
        self._member = session.member
        self._on_commit = on_commit
        self._placement: Placement = session.role.placement
        self._protector: Protector | None = None
        self._slots: OwnSlots | None = None
        self._reserved = False
        self._unprotected = False  # since some state; `_told`: by this rank
        self._told = False

    def first(self, state: StateId) -> bool:
        """Protects the first state and returns True once it is committed, or cannot be; False when the generation broke.

        A vault that is too small for the job is for the user to mend, before the job has done anything.
        """
        role = self._session.role
        self.capture(state)
        assert self.boundary is not None
        check_meta(self.boundary.meta)
        try:
            if role.generation == 1:
                self._reserve()
            every, step = self._compare_every(), state.step
            schedule = Schedule(
                first_step=step,
                exchange_from=step,
                exchanges=SETTLING_STATES,
                compare_every=every,
                keep_every=self._keep_every(),
            )
            self._start(role.store_host, role.store_port, NO_STEP, schedule)
        except ConfigError as error:
            self._session.refuse(str(error))
            raise
        except UnavailableError as error:
            self._session.trouble(role.generation, error)
            return False
        assert self._protector is not None
        self._protector.submit(self.boundary)
        return self._protector.wait_done(state.step)

    def again(self, plan: Reform) -> None:
        """Protects the state that the process was restored to, in the plan's generation."""
        self._placement = next(place for place in plan.placements if place.rank == self._session.rank)
        assert self._member.live is not None
        self.capture(self._member.live)
        self._reserved = self._reserved and not self._session.role.muted
        step, every = plan.resume_step, self._compare_every()
        schedule = Schedule(
            first_step=step,
            exchange_from=step + 1,
            exchanges=1,
            compare_every=every,
            keep_every=self._keep_every(),
            settled=step >= SETTLING_STATES,
        )
        try:
            self._start(plan.store_host, plan.store_port, self._member.commit_step, schedule)
        except DeadpoolError as error:
            self._session.trouble(plan.generation, error)
            return
        assert self._protector is not None
        assert self.boundary is not None
        self._protector.submit(self.boundary)

    def fence(self) -> None:
        """Returns when the copy of the last boundary no longer reads what a step is about to change."""
        if self._protector is not None:
            self._protector.fence()

    def wait_done(self, step: int) -> None:
        """Returns when S_step is committed, or will not be: the generation broke, or protection is off."""
        if self._protector is not None and self.on:
            self._protector.wait_done(step)

    def quiesce(self) -> bool:
        """Ends the protect thread; returns whether the process still holds its live state, untouched since its boundary."""
        if self._protector is not None:
            self._protector.quiesce()
        return self.boundary is not None and self.boundary.state == self._member.live and self.boundary.unchanged()

    def own_slots(self) -> OwnSlots:
        """Returns the slots as they are in the vault."""
        if self._slots is None:
            self._slots = OwnSlots(self._session.vault_dir, self._session.rank, self._engine)
        return self._slots

    def restore_own(self) -> bool:
        """Makes the process hold its live state again, from its own slot; returns whether that holds it."""
        assert self._member.live is not None
        if not self._reserved or self.own_slots().find(self._member.live) is None:
            return False
        from_own_slot(self._state, self.own_slots(), self._member.live, self._session.node_id)
        return True

    def restore_live(self, wanted: StateId) -> None:
        """The steady tensors are untouched; what a discarded step may have changed comes from the boundary."""
        boundary = self.boundary
        if boundary is None or boundary.state != wanted:
            raise SnapshotError(f"the process does not hold {wanted}")
        for held, source in zip(boundary.held, boundary.sources, strict=True):
            if held.volatile:
                held.tensor.copy_(source)
        self._state.restore_meta(boundary.meta)

    def _reserve(self) -> None:
        """Has the slots made, with room for optimizer state that appears with the first step; ConfigError: there is no room."""
        assert self.boundary is not None
        layout = layout_of(self.boundary.held, self.peers)
        items, growth_bytes = expected_growth(self._state.optimizers.values())
        meta_bytes = len(pack_meta(self.boundary.meta))
        snapshot_bytes, _ = capacity(layout.data_bytes + growth_bytes, len(layout.items) + items, meta_bytes)
        replica_bytes, _ = capacity(layout.unique_bytes + growth_bytes, len(layout.items) + items, meta_bytes)
        self._session.reserve(snapshot_bytes, replica_bytes if self._placement.holders else 0)
        self._slots = OwnSlots(self._session.vault_dir, self._session.rank, self._engine)
        self._reserved = True

    def _reserved_slots(self) -> OwnSlots:
        """For the protect thread, while the main thread waits at the fence."""
        if not self._reserved:
            self._reserve()
        return self.own_slots()

    def _start(self, store_host: str, store_port: int, commit_step: int, schedule: Schedule) -> None:
        session, generation = self._session, self._member.running
        store = session.connect_store(store_host, store_port)
        cancelled, turn = session.cancelled, self._turn(store)
        self._protector = Protector(
            rank=session.rank,
            generation=generation,
            slots=self._reserved_slots,
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
            schedule=schedule,
            peers=self.peers,
            commit_step=commit_step,
            counters=self.counters,
            cancelled=cancelled,
            on_commit=partial(self._commit_known, generation),
            on_refused=partial(self._refused, generation),
            on_trouble=partial(session.trouble, generation),
            turn=turn,
            verifier=self._verifier(store, cancelled),
            on_differing=partial(self._differs, generation),
        )
        with session.changed:
            session.on_checkpoint_asked = turn.ask if turn is not None else lambda: None
            session.on_cancel = self._protector.wake
            session.on_close = self._protector.close
            if cancelled.is_set():
                self._protector.wake()

    def _verifier(self, store: Store, cancelled: Event) -> Verifier | None:
        session = self._session
        if not self._compare_every():
            return None
        return Verifier(store, rank=session.rank, world_size=session.world_size, cancelled=cancelled)

    def _compare_every(self) -> int:
        return self._session.keeping.verify_every

    def _keep_every(self) -> int:
        return self._session.keeping.checkpoint_every

    def _differs(self, generation: int, step: int, verdict: Verdict, good_step: int) -> None:
        session, discarded = self._session, good_step != NO_STEP
        session.send(
            StateDiffers(
                generation=generation,
                rank=session.rank,
                step=step,
                ranks=verdict.ranks,
                item=verdict.item,
                repair="discarded" if discarded else "none",
                good_step=good_step,
            )
        )

    def _turn(self, store: Store) -> Turn | None:
        keeping = self._session.keeping

        def idle() -> bool:
            return not self._reserved_slots().pinned()

        return Turn(store, self._session.world_size, keeping.checkpoint_every, idle) if keeping.checkpoint_dir else None

    def _commit_known(self, generation: int, step: int) -> None:
        with self._session.changed:
            self._member.commit_known(generation, step)
            if self._unprotected:
                self._say(generation, step, "")
            self._unprotected = self._told = False
        self._on_commit()

    def _refused(self, generation: int, step: int, reason: str) -> None:
        """S_step will not be committed. The rank that cannot protect it says so, once until a later state is."""
        with self._session.changed:
            self._unprotected = True
            if reason and not self._told:
                self._told = True
                log.warning("unprotected since step %d: %s", step, reason)
                self._say(generation, step, reason)

    def _say(self, generation: int, step: int, reason: str) -> None:
        self._session.send(ProtectionChanged(generation=generation, rank=self._session.rank, step=step, reason=reason))

    def capture(self, state: StateId) -> None:
        """Takes down S_k as it is now: what to copy, what it was copied from, metadata."""
        self._engine.at_boundary()
        held = self._state.held()
        self.boundary = Boundary(
            state=state,
            held=held,
            sources=[each.tensor.clone() if each.volatile else each.tensor for each in held],
            versions=[each.tensor._version for each in held],
            meta=self._state.capture_meta(),
        )

    def protect(self) -> None:
        """Hands the state just completed to the protect thread."""
        if self._protector is None or self._member.live is None:
            return
        if not self.on:
            self._refused(self._member.running, self._member.live.step, SWITCHED_OFF)
            return
        self._protector.fence()  # a step without optimizer.step has not waited for the one before
        self.capture(self._member.live)
        assert self.boundary is not None
        self._protector.submit(self.boundary)
