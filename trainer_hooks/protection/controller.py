"""Keeping a rank's state safe while it trains: what is captured at a boundary, and the protect thread that copies it away."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from deadpool.host.errors import ConfigError, DeadpoolError, SnapshotError, UnavailableError
from deadpool.proto.checkpoint import folder_name, read_marker
from deadpool.proto.config import Transport
from deadpool.proto.messages import NO_STEP, Endpoint, Placement, ProtectionChanged, Reform, StateDiffers
from deadpool.proto.vault.holdings import holdings
from deadpool.proto.vault.layout import SLOT_NAMES
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import ReplicaSender
from deadpool.trainer_hooks.checkpoints.agreement import CheckpointAgreement
from deadpool.trainer_hooks.protection.boundary import Boundary, Captured
from deadpool.trainer_hooks.protection.commit import CommitBoard
from deadpool.trainer_hooks.protection.copy_engine import Engine
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.description import Description
from deadpool.trainer_hooks.protection.edge_client import EdgeClient
from deadpool.trainer_hooks.protection.interval import Interval, StepTimes
from deadpool.trainer_hooks.protection.peers import Exchange, RankPlace, Sharing
from deadpool.trainer_hooks.protection.pipeline import ProtectionPlan, Protector
from deadpool.trainer_hooks.protection.ports import Network, ProtectedProcess
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.restore import OUTSIDE_WRITES, Restored, from_own_slot
from deadpool.trainer_hooks.protection.schedule import SETTLING_STATES, Schedule
from deadpool.trainer_hooks.protection.slots import OwnSlots, capacity
from deadpool.trainer_hooks.protection.snapshot import Local, layout_of
from deadpool.trainer_hooks.protection.verify import Verdict, Verifier
from deadpool.trainer_hooks.state.metadata import pack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState
from deadpool.trainer_hooks.torch_internals import Store

log = logging.getLogger(__name__)
SWITCHED_OFF = "the script has switched it off (guard.protecting)"


class Protection:
    """Of one training state. Methods are for the main thread, unless they say so; `on_commit` is called from the protect thread.

    `on`: the script's wish. `boundary`: the state captured last.
    """

    def __init__(self, session: ProtectedProcess, state: TrainingState, engine: Engine, *, on_commit: Callable[[], None]) -> None:
        self.on = True
        self.boundary: Boundary | None = None
        self._compared: Boundary | None = None
        self._captured: Captured | None = None
        self._local = Local(
            slots=self._reserved_slots,
            engine=engine,
            sharing=Sharing(),
            counters=Counters(),
            interval=Interval(session.keeping.snapshot_every),
        )
        self._pace = StepTimes()
        self._session, self._state, self._engine = session, state, engine
        self._member = session.member
        self._on_commit = on_commit
        self._placement: Placement = session.role.placement
        self._protector: Protector | None = None
        self._slots: OwnSlots | None = None
        self._reserved = False
        self._unprotected = False  # since some state; `_told`: by this rank
        self._told = False
        self._whole_from = NO_STEP  # rank 0 says when a state since this one is committed: all has its replicas again
        session.attach(self)

    @property
    def counters(self) -> Counters:
        return self._local.counters

    @property
    def sharing(self) -> Sharing:
        """Who holds what as well, as far as this rank knows."""
        return self._local.sharing

    def first(self, state: StateId) -> bool:
        """Protects the first state and returns True once it is committed, or cannot be; False when the generation broke.

        A vault that is too small for the job is for the user to mend, before the job has done anything.
        """
        role = self._session.role
        self._local.outside_writes.watch()
        self.capture(state)
        assert self.boundary is not None
        try:
            self._state.check(self.boundary.meta)
            if role.generation == 1:
                self._reserve()
            every, step = self._session.keeping.verify_every, state.step
            schedule = Schedule(
                first_step=step,
                exchange_from=step,
                exchanges=SETTLING_STATES,
                compare_every=every,
                keep_every=self._session.keeping.checkpoint_every,
                interval=max(1, self._session.keeping.snapshot_every),
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

    def holds(self, restored: Restored) -> None:
        """The process was restored to another state than its own."""
        self._local.sharing = restored.sharing
        self._local.outside_writes.begin(expected=restored.sums, keys=restored.outside_writes)

    def changed_by_script(self) -> None:
        """Between two loops the script has changed what it liked, of which no copy was being made."""
        self._compared = self.boundary
        self._local.outside_writes.begin()

    def again(self, plan: Reform) -> None:
        """Protects the state that the process was restored to, in the plan's generation."""
        self._placement = next(place for place in plan.placements if place.rank == self._session.rank)
        assert self._member.live is not None
        self._engine.begin()
        self.capture(self._member.live)
        self._reserved = self._reserved and not self._session.role.muted
        # S_resume_step relies on peers as it was found on the nodes of before, which may have been of other domains.
        whole_from = plan.resume_step + bool(self._placement.domain)
        self._whole_from = whole_from if self._session.rank == 0 else NO_STEP
        step, every = plan.resume_step, self._session.keeping.verify_every
        schedule = Schedule(
            first_step=step,
            exchange_from=step + 1,
            exchanges=1,
            compare_every=every,
            keep_every=self._session.keeping.checkpoint_every,
            settled=step >= SETTLING_STATES,
            interval=max(1, self._session.keeping.snapshot_every),
        )
        try:
            self._start(plan.store_host, plan.store_port, self._member.commit_step, schedule)
        except DeadpoolError as error:
            self._session.trouble(plan.generation, error)
            return
        self._submit()

    def fence(self) -> None:
        """Returns when the copy of the last boundary no longer reads what a step is about to change."""
        if self._protector is None:
            return
        self._protector.fence()
        boundary = self.boundary
        if boundary is not None and boundary.watched and boundary is not self._compared:
            self._compared = boundary
            if not self._session.cancelled.is_set():  # else a muted call may have written what it likes
                self._local.outside_writes.at_fence(boundary, self._engine)

    def wait_done(self, step: int) -> None:
        """Returns when S_step is committed, or will not be: the generation broke, or protection is off."""
        if self._protector is not None and self.on:
            self._protector.wait_done(step)

    def quiesce(self) -> bool:
        """Ends the protect thread; returns whether the process still holds its live state: the bytes that its own slot has of it.

        Version counters are not asked. A step that was discarded may have written past them: through `.data`, by a collective,
        into other memory that a parameter was given. What is volatile may have changed: `restore_live` has it from the boundary.
        """
        if self._protector is not None:
            self._protector.quiesce()
        boundary, live = self.boundary, self._member.live
        if boundary is None or live is None or boundary.state != live or self._state.held() is not boundary.held:
            return False
        slot = self.own_slots().find(live) if self._reserved else None
        try:
            shared = {boundary.held[index].key: boundary.held[index].tensor for index in boundary.shared}
            return slot is not None and slot.holds(shared, self._engine)
        except SnapshotError as error:
            log.warning("%s: the live state cannot be compared with it", error)
            return False

    def own_slots(self) -> OwnSlots:
        """Returns the slots as they are in the vault."""
        if self._slots is None:
            ready = self._session.ready_slots
            self._slots = OwnSlots(
                self._session.vault_dir, self._session.rank, self._engine, ready.take() if ready is not None else {}
            )
        return self._slots

    def stand_ready(self) -> None:
        """A hot stand-in has time: what is made beforehand is waited for, and made known to the device."""
        ready = self._session.ready_slots
        if ready is not None and len(ready.take()) >= len(SLOT_NAMES):
            self.own_slots()

    def describe(self) -> Description:
        """Returns what this rank holds, as in the boundary captured last."""
        rank, step, boundary = self._session.rank, self._member.commit_step, self.boundary
        if step == NO_STEP or boundary is None:
            return Description(rank=rank)
        layout = layout_of(boundary.held, self.sharing.relied_on)
        return Description(
            rank=rank,
            step=step,
            holdings=holdings(layout, len(pack_meta(boundary.meta))),
            nodes=tuple(holder.node_id for holder in self._placement.holders),
        )

    def restore_own(self) -> bool:
        """Makes the process hold its live state again, from its own slot; returns whether that holds it."""
        assert self._member.live is not None
        if not self._reserved or self.own_slots().find(self._member.live) is None:
            return False
        from_own_slot(self._state, self.own_slots(), self._member.live, self._session.node_id)
        return True

    def restore_live(self, wanted: StateId) -> None:
        """Brings back from the boundary what a discarded step may have changed; the steady tensors are untouched."""
        boundary = self.boundary
        if boundary is None or boundary.state != wanted:
            raise SnapshotError(f"the process does not hold {wanted}")
        self._state.put_back(boundary.held, boundary.sources, boundary.meta)

    def _reserve(self) -> None:
        """Has the slots made, with room for optimizer state that appears with the first step; ConfigError: there is no room."""
        assert self.boundary is not None
        layout = layout_of(self.boundary.held, self.sharing.relied_on)
        growth = self._state.growth()
        meta_bytes = len(pack_meta(self.boundary.meta))
        snapshot_bytes, _ = capacity(layout.data_bytes + growth.size_bytes, len(layout.items) + growth.items, meta_bytes)
        replica_bytes, _ = capacity(layout.unique_bytes + growth.size_bytes, len(layout.items) + growth.items, meta_bytes)
        self._session.reserve(snapshot_bytes, replica_bytes if self._placement.holders else 0)
        if self._slots is not None and not self._slots.are_current():
            self._slots = None
        self._reserved = True

    def _reserved_slots(self) -> OwnSlots:
        """For the protect thread, while the main thread waits at the fence."""
        if not self._reserved:
            self._reserve()
        return self.own_slots()

    def _start(self, store_host: str, store_port: int, commit_step: int, schedule: Schedule) -> None:
        session, generation = self._session, self._member.running
        plan = ProtectionPlan(rank=session.rank, generation=generation, commit_step=commit_step)
        network = self._network(session.connect_store(store_host, store_port), session.cancelled)
        protector = Protector(plan, schedule, self._local, network, _Reports(self, generation), self._wished)
        with session.changed:
            self._protector = protector
            if network.cancelled.is_set():
                protector.wake()

    def _network(self, store: Store, cancelled: threading.Event) -> Network:
        session, keeping = self._session, self._session.keeping
        rank, ranks = session.rank, session.playing
        verifier, checkpoints = None, None
        if keeping.verify_every:
            verifier = Verifier(store, rank=rank, ranks=ranks, cancelled=cancelled)
        if keeping.checkpoint_dir and not session.excluded:  # without some ranks' parts there would be no whole one
            checkpoints = CheckpointAgreement(store, len(ranks), self._becomes_checkpoint, self._nothing_is_pinned)
        return Network(
            board=CommitBoard(store, rank=rank, ranks=ranks),
            holders=[self._way_to(endpoint) for endpoint in self._placement.holders],
            exchange=Exchange(
                store,
                rank=rank,
                ranks=ranks,
                place=RankPlace(
                    node_id=session.node_id,
                    domain=self._placement.domain or session.node_id,
                    copies=min(keeping.replicas, len(self._placement.holders)),
                ),
                cancelled=cancelled,
            ),
            verifier=verifier,
            checkpoints=checkpoints,
            cancelled=cancelled,
        )

    def _way_to(self, holder: Endpoint) -> ReplicaSender:
        keeping = self._session.keeping
        by_tcp = VaultClient(holder, self._session.token, keeping.replica_connections)
        by_mpi = keeping.h2h is Transport.MPI
        return EdgeClient(self._session.vault_dir, holder, by_tcp) if by_mpi else by_tcp

    def _nothing_is_pinned(self) -> bool:
        return not self._reserved_slots().pinned()

    def _becomes_checkpoint(self, step: int) -> bool:
        """One every so many steps; of the step before a boundary that is drilled, once, and none of the boundary while it is."""
        keeping = self._session.keeping
        if step in keeping.drill_at and step not in self._session.drilled:
            return False
        if step + 1 in keeping.drill_at:
            return read_marker(Path(keeping.checkpoint_dir) / folder_name(step)) is None
        every = keeping.checkpoint_every
        return every > 0 and step % every == 0

    # ------------------------------------------------------------ asked by the session, on any thread

    def checkpoint_asked(self) -> None:
        if self._protector is not None:
            self._protector.checkpoint_asked()

    def abort_begins(self) -> None:
        self._engine.abort_begins()

    def generation_over(self) -> None:
        if self._protector is not None:
            self._protector.wake()

    def close(self, *, commit_timeout_s: float = 0.0) -> None:
        """At exit. `commit_timeout_s`: for the last state, which others cannot commit without this rank."""
        if self._protector is not None:
            if self.on and self.boundary is not None and commit_timeout_s > 0:
                self._protector.wait_done(self.boundary.state.step, commit_timeout_s)
            self._protector.close()

    # ------------------------------------------------------------ said by the protect thread

    def commit_known(self, generation: int, step: int) -> None:
        with self._session.changed:
            self._member.commit_known(generation, step)
            whole = self._whole_from != NO_STEP and step >= self._whole_from
            if self._unprotected or whole:
                self._say(generation, step, "")
            self._unprotected = self._told = False
            self._whole_from = NO_STEP if whole else self._whole_from
        self._on_commit()

    def refused(self, generation: int, step: int, reason: str) -> None:
        """S_step will not be committed. The rank that cannot protect it says so, once until a later state is."""
        with self._session.changed:
            self._unprotected = True
            if reason and not self._told:
                self._told = True
                log.warning("unprotected since step %d: %s", step, reason)
                self._say(generation, step, reason)

    def differs(self, generation: int, step: int, verdict: Verdict, good_step: int) -> None:
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

    def failed(self, generation: int, error: Exception) -> None:
        self._session.trouble(generation, error)

    def _say(self, generation: int, step: int, reason: str) -> None:
        self._session.send(ProtectionChanged(generation=generation, rank=self._session.rank, step=step, reason=reason))

    # ------------------------------------------------------------ at a boundary

    def capture(self, state: StateId) -> None:
        """Takes down S_k as it is now: what to copy, what it was copied from, metadata."""
        held, written = self._state.held(), self._local.outside_writes.keys
        meta = self._state.capture_meta()
        if self._captured is None or not self._captured.is_of(held, written):
            self._captured = Captured(held, written)
        sources = self._captured.sources()
        self.boundary = Boundary(
            state=state,
            captured=self._captured,
            sources=sources,
            point=self._engine.at_boundary(),  # behind the clones among the sources
            versions=self._captured.versions(),
            meta={**meta, OUTSIDE_WRITES: sorted(written)} if written else meta,
            watched=self._local.outside_writes.is_watched(),
        )

    def protect(self, *, needed: bool = False) -> None:
        """Hands the state just completed to the protect thread, if it is due. `needed`: it is, whatever the interval; said by all
        ranks alike.
        """
        if self._protector is None or self._member.live is None:
            return
        step = self._member.live.step
        if not self.on:
            self.refused(self._member.running, step, SWITCHED_OFF)
            return
        self._protector.fence()  # a step without optimizer.step has not waited for the one before
        self._pace.boundary(stalled_s=self.counters.exposed_stall_s, now_s=time.monotonic())
        if needed or self._is_drilled(step) or self._protector.is_due(step):
            self.capture(self._member.live)
            self._submit()
        else:
            self._state.passed_over()
            self._compared = self.boundary  # its tensors have changed since
            self._protector.pass_over(step)

    @property
    def interval(self) -> int:
        """The steps from one protected state to the next; 0 while none is."""
        return self._protector.interval if self._protector is not None and self.on else 0

    @property
    def busy_s(self) -> float:
        """What the protection of one state takes; 0 while that is not known."""
        return self._local.interval.busy_s

    def _wished(self) -> int:
        return self._local.interval.wished(self._pace.step_s())

    def _is_drilled(self, step: int) -> bool:
        """Returns whether a drill goes back to S_step, or from it."""
        return step in self._session.keeping.drill_at or step + 1 in self._session.keeping.drill_at

    def _submit(self) -> None:
        assert self._protector is not None
        assert self.boundary is not None
        self._protector.submit(self.boundary)
        if self.boundary.watched:
            self._protector.fence()


class _Reports:
    """Says what comes of the states of one generation (ports.ProtectionEvents)."""

    def __init__(self, protection: Protection, generation: int) -> None:
        self._protection, self._generation = protection, generation

    def committed(self, step: int) -> None:
        self._protection.commit_known(self._generation, step)

    def refused(self, step: int, reason: str) -> None:
        self._protection.refused(self._generation, step, reason)

    def differs(self, step: int, verdict: Verdict, good_step: int) -> None:
        self._protection.differs(self._generation, step, verdict, good_step)

    def failed(self, error: Exception) -> None:
        self._protection.failed(self._generation, error)
