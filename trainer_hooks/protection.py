"""Keeping a rank's state safe while it trains: what is captured at a boundary, and the protect thread that copies it away."""

from collections.abc import Callable
from functools import partial
from threading import Event

from torch._C._distributed_c10d import Store

from deadpool.proto.errors import DeadpoolError, SnapshotError, UnavailableError
from deadpool.proto.messages import NO_STEP, Placement, ProtectionChanged, Reform, StateDiffers
from deadpool.proto.slots import StateId
from deadpool.trainer_hooks.commit import CommitBoard
from deadpool.trainer_hooks.engine import Engine
from deadpool.trainer_hooks.protect import Boundary, Counters, Protector, layout_of
from deadpool.trainer_hooks.replicate import VaultClient
from deadpool.trainer_hooks.restore import from_own_slot
from deadpool.trainer_hooks.session import Session
from deadpool.trainer_hooks.sizes import expected_growth
from deadpool.trainer_hooks.state import TrainingState, check_meta, pack_meta
from deadpool.trainer_hooks.turn import Turn
from deadpool.trainer_hooks.unique import Peers, exchange
from deadpool.trainer_hooks.vault import OwnSlots, capacity
from deadpool.trainer_hooks.verify import Verdict, Verifier


class Protection:
    """Of one training state. All methods are for the main thread; `on_commit` is called from the protect thread.

    `boundary`: the state captured last. `slots`: this rank's part of the vault, once reserved. `peers`: who holds what as well.
    """

    def __init__(self, session: Session, state: TrainingState, engine: Engine, *, on_commit: Callable[[], None]) -> None:
        self.on = True
        self.counters = Counters()
        self.boundary: Boundary | None = None
        self.slots: OwnSlots | None = None
        self.peers: Peers = {}
        self._session, self._state, self._engine = session, state, engine
        self._member = session.member
        self._on_commit = on_commit
        self._placement: Placement = session.role.placement
        self._protector: Protector | None = None

    def first(self, state: StateId) -> bool:
        """Reserves the vault, protects the first state and returns True once it is committed; False when the generation broke."""
        role = self._session.role
        self.capture(state)
        assert self.boundary is not None
        check_meta(self.boundary.meta)
        try:
            self.reserve()
            steps = range(state.step, state.step + 3)
            self._start(role.store_host, role.store_port, NO_STEP, steps)
        except UnavailableError as error:
            self._session.trouble(role.generation, error)
            return False
        assert self._protector is not None
        self._protector.submit(self.boundary)
        return self._protector.wait_commit(state.step)

    def again(self, plan: Reform) -> None:
        """Protects the state that the process was restored to, in the plan's generation."""
        self._placement = next(place for place in plan.placements if place.rank == self._session.rank)
        assert self._member.live is not None
        self.capture(self._member.live)
        if self.slots is None or self._session.role.muted:
            self.reserve()
        steps = range(plan.resume_step + 1, plan.resume_step + 2)
        try:
            self._start(plan.store_host, plan.store_port, self._member.commit_step, steps)
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

    def wait_commit(self, step: int) -> None:
        """Returns when S_step is committed, or will not be: the generation broke, or protection is off."""
        if self._protector is not None and self.on:
            self._protector.wait_commit(step)

    def quiesce(self) -> bool:
        """Ends the protect thread; returns whether the process still holds its live state, untouched since its boundary."""
        if self._protector is not None:
            self._protector.quiesce()
        return self.boundary is not None and self.boundary.state == self._member.live and self.boundary.unchanged()

    def own_slots(self) -> OwnSlots:
        if self.slots is None:
            self.slots = OwnSlots(self._session.vault_dir, self._session.rank, self._engine)
        return self.slots

    def restore_own(self) -> None:
        """Makes the process hold its live state again, from its own slot."""
        assert self._member.live is not None
        from_own_slot(self._state, self.own_slots(), self._member.live, self._session.node_id)

    def restore_live(self, wanted: StateId) -> None:
        """The steady tensors are untouched; what a discarded step may have changed comes from the boundary."""
        boundary = self.boundary
        if boundary is None or boundary.state != wanted:
            raise SnapshotError(f"the process does not hold {wanted}")
        for held, source in zip(boundary.held, boundary.sources, strict=True):
            if held.volatile:
                held.tensor.copy_(source)
        self._state.restore_meta(boundary.meta)

    def reserve(self) -> None:
        """Has the slots made, with room for optimizer state that appears with the first step."""
        assert self.boundary is not None
        layout = layout_of(self.boundary.held, self.peers)
        items, growth_bytes = expected_growth(self._state.optimizers.values())
        meta_bytes = len(pack_meta(self.boundary.meta))
        snapshot_bytes, _ = capacity(layout.data_bytes + growth_bytes, len(layout.items) + items, meta_bytes)
        replica_bytes, _ = capacity(layout.unique_bytes + growth_bytes, len(layout.items) + items, meta_bytes)
        self._session.reserve(snapshot_bytes, replica_bytes if self._placement.holders else 0)
        self.slots = OwnSlots(self._session.vault_dir, self._session.rank, self._engine)

    def _start(self, store_host: str, store_port: int, commit_step: int, exchange_steps: range) -> None:
        session, generation = self._session, self._member.running
        assert self.slots is not None
        store = session.connect_store(store_host, store_port)
        cancelled = session.cancelled
        self._protector = Protector(
            rank=session.rank,
            generation=generation,
            slots=self.slots,
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
            peers=self.peers,
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
        every, slots = self._session.keeping.checkpoint_every, self.slots
        assert slots is not None
        return Turn(store, self._session.world_size, every, lambda: not slots.pinned()) if every else None

    def _commit_known(self, generation: int, step: int) -> None:
        with self._session.changed:
            self._member.commit_known(generation, step)
        self._on_commit()

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
        if not self.on or self._protector is None or self._member.live is None:
            return
        self._protector.fence()  # a step without optimizer.step has not waited for the one before
        self.capture(self._member.live)
        assert self.boundary is not None
        self._protector.submit(self.boundary)
