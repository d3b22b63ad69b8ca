"""Protects each state of one generation beside the computation: copy, seal, replicate, commit. One thread, one state at a time.

    submit(S_k) -> [verdict(k-1) known] -> copy -> (fence opens) -> seal -> Put to the holders -> announce -> verdict(k) known
                                             |                               ^    ^                               |
                                             +-- parts of a large state, as they are copied    |                  |
                                                                                  +-- once, if ranks have parted in S_k

The Put of a large state begins with its copy, unless the ranks first have to find out, or to compare, what they hold; it ends
after the seal: the holder seals its replica with what the rank has sealed.

What goes wrong with that here (no room for a slot, a holder that refuses or is out of reach) does not stop the training: this
rank refuses S_k, nobody commits it, and all try again after a pause (schedule.py). The newest commit stays in every vault.
States that are not due are passed over, by all ranks alike, and cost nothing.

A new Protector is made for every generation. `quiesce` lets a copy that can still succeed succeed (it may be the newest state
that this rank can offer) and makes sure that nothing is written afterwards.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from deadpool.host.errors import UnavailableError
from deadpool.proto.messages import NO_STEP
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.together import HeldTogether
from deadpool.trainer_hooks.protection.boundary import Boundary
from deadpool.trainer_hooks.protection.commit import Known, Outcome
from deadpool.trainer_hooks.protection.holders import Holders, Sending
from deadpool.trainer_hooks.protection.interval import Measured
from deadpool.trainer_hooks.protection.looks import Looks
from deadpool.trainer_hooks.protection.outgoing import OutgoingState, Stamp
from deadpool.trainer_hooks.protection.peers import Sharing
from deadpool.trainer_hooks.protection.ports import Network, ProtectionEvents
from deadpool.trainer_hooks.protection.schedule import Schedule
from deadpool.trainer_hooks.protection.slots import OpenSlot
from deadpool.trainer_hooks.protection.snapshot import Local, Placed, SnapshotWriter
from deadpool.trainer_hooks.protection.verify import Verdict
from deadpool.trainer_hooks.store_wait import RefusedError

log = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 2.0
STREAMED_BYTES = 4 << 20  # a smaller state is copied before a thread to send it would have begun


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionPlan:
    """`commit_step`: the newest commit known when the generation began."""

    rank: int
    generation: int
    commit_step: int


class Protector:
    """The protection of one generation. `wished()`: the interval of states that this rank would like, on the protect thread."""

    def __init__(
        self,
        plan: ProtectionPlan,
        schedule: Schedule,
        local: Local,
        network: Network,
        events: ProtectionEvents,
        wished: Callable[[], int] = lambda: 1,
    ) -> None:
        self._plan, self._schedule, self._local, self._network, self._events = plan, schedule, local, network, events
        self._wished = wished
        self._cancelled = network.cancelled
        self._writer = SnapshotWriter(local)
        self._together = HeldTogether(plan.rank)
        self._holders = Holders(network.holders, network.cancelled)
        self.commit_step = plan.commit_step
        self._agreed_step = NO_STEP  # where ranks compare: the newest commit in which all that should be the same was
        self._open: StateId | None = None  # announced or refused by this rank, and the verdict is not known yet
        self._done_step = NO_STEP  # all that comes of this state has come of it
        self._passed_step = NO_STEP  # the newest one that was passed over
        self._ended = False
        self._looks = Looks()
        self._heard: Known | None = None  # the verdict on `_open`, where this rank's announcement has settled it
        self._awaited = False  # somebody stands still until the verdict is known
        self._next: Boundary | None = None
        self._current: Boundary | None = None
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="deadpool-protect", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ main thread

    @property
    def interval(self) -> int:
        """The steps from one protected state to the next, as the ranks have agreed on it."""
        return self._schedule.interval

    def is_due(self, step: int) -> bool:
        """Returns whether S_step is to be submitted. The one before must have been copied (fence)."""
        return self._schedule.is_due(step)

    def pass_over(self, step: int) -> None:
        """S_step is not protected."""
        with self._wake:
            self._passed_step = step

    def submit(self, boundary: Boundary) -> None:
        """Hands S_k over. The one before must have been copied (fence)."""
        with self._wake:
            assert self._next is None, "a state was submitted before the last one was copied"
            self._current = boundary
            if self._ended:
                boundary.settle()
                return
            self._next = boundary
            self._wake.notify_all()

    def fence(self) -> None:
        """Returns when the newest state submitted is copied: what it was copied from may change then."""
        boundary = self._current
        if boundary is None:
            return
        if not boundary.needed_s:
            boundary.needed_s = time.monotonic()
        if not boundary.copied.is_set():
            began = time.monotonic()
            boundary.copied.wait()
            self._local.counters.exposed_stall_s += time.monotonic() - began
        self._local.engine.fence()

    def wait_done(self, step: int, timeout_s: float | None = None) -> bool:
        """Returns True when S_step is committed, refused or passed over, False when the generation, or the time, ended before."""
        with self._wake:
            self._awaited = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._is_done(step) or self._cancelled.is_set(), timeout_s)
            self._awaited = False
            return self._is_done(step)

    def _is_done(self, step: int) -> bool:
        return self._done_step >= step or self._passed_step == step

    def checkpoint_asked(self) -> None:
        if self._network.checkpoints is not None:
            self._network.checkpoints.ask()

    def wake(self) -> None:
        """`cancelled` has been set."""
        with self._wake:
            self._wake.notify_all()

    def quiesce(self) -> None:
        """Ends the protection: returns when the newest state is sealed or cannot be. Nothing is written afterwards."""
        with self._wake:
            self._cancelled.set()
            if self._next is not None and self._open is not None:
                self._next.settle()  # the older slot may still be needed
                self._next = None
            self._wake.notify_all()
        self._holders.close()
        if self._current is not None:
            self._current.settled.wait()

    def close(self) -> None:
        """At exit: ends the protection and its thread, which must not be inside torch when the interpreter goes down."""
        self.quiesce()
        self._thread.join(CLOSE_TIMEOUT_S)

    # ------------------------------------------------------------ protect thread

    def _work(self) -> None:
        try:
            while (boundary := self._take()) is not None:
                try:
                    if not self._protect(boundary):
                        return
                except UnavailableError:  # the generation is over, or its store is gone
                    raise
                except Exception as error:  # whatever it is, training goes on
                    self._refuse(boundary.state, error)
                self._open = boundary.state
        except Exception as error:
            if not self._cancelled.is_set():
                self._events.failed(error)
        finally:
            with self._wake:
                self._ended = True
                if self._next is not None:
                    self._next.settle()
                self._wake.notify_all()

    def _protect(self, boundary: Boundary) -> bool:
        """Returns False when the generation is to end; an error, but for UnavailableError, when S_k cannot be protected."""
        known, sending = self._local.sharing, None
        try:
            slot = self._local.slots().find_whole(boundary.state)
            is_copied = slot is None
            if slot is None:
                slot, sending = self._copy(boundary)
            else:
                self._local.outside_writes.begin()  # nothing is copied, and nothing is known of the memory
        finally:
            boundary.settle()
        if not self._verified(slot, known):
            return False
        self._replicate(slot, sending)
        if is_copied and not boundary.watched:
            measured = Measured(busy_s=time.monotonic() - boundary.begun_s, stall_s=boundary.stall_s())
            self._local.interval.measured(measured, slot.header.data_bytes)
        self._announce(slot)
        return True

    def _announce(self, slot: OpenSlot, *, again: bool = False) -> None:
        checkpoints = self._network.checkpoints
        wanted = checkpoints is not None and checkpoints.before_commit()
        together = self._together.of(slot.tables)
        self._heard = self._network.board.announce(
            slot.state.step, together, again=again, checkpoint=wanted, interval=self._wished()
        )

    def _refuse(self, state: StateId, error: Exception, *, again: bool = False) -> None:
        if self._cancelled.is_set():
            raise UnavailableError(f"the generation ended before {state} was protected") from error
        if not isinstance(error, RefusedError):
            self._network.board.refuse(state.step, again=again)
            self._events.refused(state.step, (str(error) or repr(error)).splitlines()[0])

    def _take(self) -> Boundary | None:
        """Returns the next state to protect once the verdict on the one before is known; None when the generation has ended."""
        if self._open is not None and not self._learn(self._open):
            return None
        with self._wake:
            self._wake.wait_for(lambda: self._next is not None or self._cancelled.is_set())
            boundary, self._next = self._next, None
        if boundary is not None:
            boundary.begun_s = time.monotonic()
            self._schedule.begins(boundary.state.step)
        return boundary

    def _learn(self, state: StateId) -> bool:
        """Returns True once the verdict on S_k is known, False when the generation ended before."""
        known = self._known(state.step)
        if known is not None and known.outcome is Outcome.PARTED:
            if not self._protect_apart(state):
                return False
            known = self._known(state.step, again=True)
        if known is None:
            return False
        outcome, self._open = known.outcome, None
        if outcome in (Outcome.REFUSED, Outcome.PARTED):
            self._schedule.refused(state.step)
            self._events.refused(state.step, "")
            self._done(state.step)
            return True
        asked = outcome is Outcome.CHECKPOINT
        compared = self._network.verifier is None or self._schedule.comparison_is_due(state.step)
        self._schedule.committed(state.step, known.interval)
        if asked and not compared:
            self._schedule.asked()  # rank 0 asks again with the next state, which is compared first
        self.commit_step = state.step
        if self._network.verifier is not None and self._schedule.is_settled(state.step):
            self._agreed_step = state.step
        self._local.counters.commits += 1
        self._events.committed(state.step)
        checkpoints = self._network.checkpoints
        if checkpoints is not None and checkpoints.has_come(state.step, asked=asked and compared):
            self._local.slots().pin(state)
        self._done(state.step)
        return True

    def _known(self, step: int, *, again: bool = False) -> Known | None:
        """Returns the verdict on S_step once it is known; None when the generation ended before."""
        known, self._heard = self._heard, None
        self._looks.begin(time.monotonic())
        while known is None:
            with self._wake:
                hurried = self._wake.wait_for(self._is_hurried, self._looks.pause_s())
            if self._cancelled.is_set():
                return None
            if (known := self._network.board.look(step, again=again)) is not None:
                self._looks.found(time.monotonic())
            elif hurried:
                self._cancelled.wait(self._looks.hurried_pause_s())
            else:
                self._looks.nothing()
        return known

    def _is_hurried(self) -> bool:
        return self._next is not None or self._awaited or self._cancelled.is_set()

    def _protect_apart(self, state: StateId) -> bool:
        """Some ranks that held the same hold other bytes in S_k: what has parted travels from S_k on, and S_k is announced again.

        Where ranks compare what they hold (--verify-every), a rank that is outvoted has not parted by right: returns False then,
        as `_protect`. The state that was committed before stays in every vault meanwhile.
        """
        try:
            slot = self._local.slots().find(state)
            assert slot is not None, "a state is overwritten only once the verdict on it is known"
            verifier, known = self._network.verifier, self._local.sharing
            compared = self._schedule.comparison_is_due(state.step) or not self._schedule.is_settled(state.step)
            if verifier is not None and not compared:
                verdict = verifier.verdict(state.step, slot.sums(), known.same, again=True)
                if not self._is_to_stay(slot, verdict, known):
                    return False
            sharing = self._network.exchange.peers(state.step, slot.sums(), again=True)
            with self._wake:  # once `quiesce` has it, nothing is written any more
                if sharing is None or self._cancelled.is_set():
                    raise UnavailableError(f"the generation ended before {state} was protected")
                peers, before = sharing.relied_on, known.relied_on
                parted = [key for key in peers if peers[key] != before.get(key, ())]
                self._writer.agree(sharing)
                slot = self._local.slots().seal_again(slot, peers)
            log.info("ranks have parted in step %d: %d items, such as %s", state.step, len(parted), parted[:1])
            self._replicate(slot)
            self._announce(slot, again=True)
        except UnavailableError:
            raise
        except Exception as error:  # as in _work
            self._refuse(state, error, again=True)
        return True

    def _done(self, step: int) -> None:
        with self._wake:
            self._done_step = step
            self._wake.notify_all()

    def _copy(self, boundary: Boundary) -> tuple[OpenSlot, Sending | None]:
        """Copies S_k into the free slot and seals it. A large one is on its way to the holders already."""
        placed = self._writer.place(boundary, (self.commit_step, self._agreed_step))
        sending = self._begun(placed)
        try:
            copied = self._writer.copy(placed, sending.outgoing if sending else None)
            if self._schedule.exchange_is_due(boundary.state.step):
                sharing = self._network.exchange.peers(boundary.state.step, copied.by_key())
                if sharing is not None and sharing != self._local.sharing:
                    self._writer.agree(sharing)
            slot = self._writer.seal(copied)
            if sending is not None:
                sending.outgoing.sealed(slot)
            return slot, sending
        finally:
            if sending is not None:
                sending.outgoing.give_up()

    def _begun(self, placed: Placed) -> Sending | None:
        """Begins to send the state while it is copied: a large one of which nobody has to know anything first."""
        step, layout = placed.boundary.state.step, placed.layout
        if not self._holders or layout.unique_bytes < STREAMED_BYTES:
            return None
        if self._schedule.exchange_is_due(step) or (self._network.verifier and self._schedule.comparison_is_due(step)):
            return None
        path, data = self._local.slots().place(placed.index, placed.data_offset, layout)
        outgoing = OutgoingState(
            self._stamp(placed.boundary.state), layout, meta_bytes=len(placed.meta), path=path, data=data,
            data_offset=placed.data_offset,
        )  # fmt: skip
        return self._holders.begin(outgoing)

    def _stamp(self, state: StateId) -> Stamp:
        plan = self._plan
        return Stamp(rank=plan.rank, state=state, keep_step=self.commit_step, sender_generation=plan.generation)

    def _verified(self, slot: OpenSlot, known: Sharing) -> bool:
        """Returns False when S_k must not be committed: a rank's copy is outvoted, and an earlier state was the same everywhere.

        The job goes back to that one then: every vault has kept it. The supervisor replaces the rank's process.
        """
        step, verifier = slot.state.step, self._network.verifier
        if verifier is None or not self._schedule.comparison_is_due(step):
            return True
        return self._is_to_stay(slot, verifier.verdict(step, slot.sums(), known.same), known)

    def _is_to_stay(self, slot: OpenSlot, verdict: Verdict | None, known: Sharing) -> bool:
        """Says what is wrong with the state, if anything is. Returns as `_verified`."""
        step = slot.state.step
        if verdict is None:
            return True
        good_step, self._agreed_step = self._agreed_step, NO_STEP
        discarded = verdict.majority and good_step != NO_STEP
        if discarded:
            self._writer.agree(known)  # an exchange with this state would have taken the wrong copy for one of its rank's own
        if discarded and self._plan.rank in verdict.ranks:
            self._local.slots().discard(slot.state)
        if self._plan.rank == verdict.teller or self._plan.rank not in verdict.ranks:
            self._events.differs(step, verdict, good_step if discarded else NO_STEP)
        return not discarded

    def _replicate(self, slot: OpenSlot, sending: Sending | None = None) -> None:
        """Returns when every holder has acknowledged the slot's unique part; SnapshotError: one refuses, or is out of reach."""
        began = time.monotonic()
        counters = self._local.counters
        if sending is not None:
            counters.replicated_bytes += self._holders.wait(sending)
        elif self._holders:
            counters.replicated_bytes += self._holders.send(OutgoingState.of(slot, self._stamp(slot.state)))
        counters.replicate_s += time.monotonic() - began
