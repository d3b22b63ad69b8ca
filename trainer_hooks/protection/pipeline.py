"""Protects each state of one generation beside the computation: copy, seal, replicate, commit. One thread, one state at a time.

    submit(S_k) -> [verdict(k-1) known] -> copy -> (fence opens) -> seal -> Put to the holders -> announce -> verdict(k) known

What goes wrong with that here (no room for a slot, a holder that refuses or is out of reach) does not stop the training: this
rank refuses S_k, nobody commits it, and all try again after a pause (schedule.py). The newest commit stays in every vault.

A new Protector is made for every generation. `quiesce` lets a copy that can still succeed succeed (it may be the newest state
that this rank can offer) and makes sure that nothing is written afterwards.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from deadpool.host.errors import SnapshotError, UnavailableError
from deadpool.proto.messages import NO_STEP
from deadpool.proto.vault.layout import UNIQUE, Item, Layout, checksum
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.wire import Put
from deadpool.trainer_hooks.checkpoints.agreement import Turn
from deadpool.trainer_hooks.protection.commit import CommitBoard, Outcome, RefusedError
from deadpool.trainer_hooks.protection.copy_engine import Engine
from deadpool.trainer_hooks.protection.peers import Peers
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.schedule import Schedule
from deadpool.trainer_hooks.protection.slots import OpenSlot, OwnSlots, capacity
from deadpool.trainer_hooks.protection.state import Held, Meta, pack_meta, type_name
from deadpool.trainer_hooks.protection.verify import Verdict, Verifier

CHUNK_BYTES = 32 << 20
RETRY_S = 0.2
PATIENCE_S = 5.0  # with a holder that is out of reach: until then the supervisor has noticed that it is lost
CLOSE_TIMEOUT_S = 2.0


@dataclass(slots=True, kw_only=True)
class Counters:
    """What protection has done so far in this process. Seconds are wall time of the protect thread, stalls of the main thread."""

    copied_bytes: int = 0
    copy_s: float = 0.0
    replicated_bytes: int = 0
    replicate_s: float = 0.0
    commits: int = 0
    exposed_stall_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Boundary:
    """S_k as the main thread hands it over. `sources`: what to copy for each held item (a clone where it is volatile)."""

    state: StateId
    held: list[Held]
    sources: list[Tensor]
    versions: list[int]
    meta: Meta
    copied: threading.Event = field(default_factory=threading.Event)  # the copy is done (CUDA: enqueued), or never will be
    settled: threading.Event = field(default_factory=threading.Event)  # the slot is sealed, or never will be by this state

    def unchanged(self) -> bool:
        """Returns whether the steady tensors are as they were when the state was complete."""
        pairs = zip(self.held, self.versions, strict=True)
        return all(held.volatile or held.tensor._version == version for held, version in pairs)

    def settle(self) -> None:
        self.copied.set()
        self.settled.set()


class Protector:
    """The protection of one generation. `peers` and `counters` live on from one generation to the next, and so do the slots.

    `slots()`: this rank's, made if they are not there yet (ConfigError: there is no room). `on_refused(step, reason)`: S_step
    will not be committed, because of this rank for that reason, or "" because of some rank.
    """

    def __init__(
        self,
        *,
        rank: int,
        generation: int,
        slots: Callable[[], OwnSlots],
        engine: Engine,
        holders: Sequence[VaultClient],
        board: CommitBoard,
        exchange: Callable[[int, dict[str, int]], Peers | None],
        schedule: Schedule,
        peers: Peers,
        commit_step: int,
        counters: Counters,
        cancelled: threading.Event,
        on_commit: Callable[[int], None],
        on_refused: Callable[[int, str], None],
        on_trouble: Callable[[Exception], None],
        turn: Turn | None = None,
        verifier: Verifier | None = None,
        on_differing: Callable[[int, Verdict, int], None] = lambda step, verdict, good_step: None,
    ) -> None:
        self._rank, self._generation = rank, generation
        self._slots, self._engine, self._holders = slots, engine, holders
        self._board, self._exchange, self._schedule, self._peers = board, exchange, schedule, peers
        self._counters, self._cancelled = counters, cancelled
        self._on_commit, self._on_refused, self._on_trouble = on_commit, on_refused, on_trouble
        self._turn = turn  # of persistent checkpoints, if there are any
        self._verifier, self._on_differing = verifier, on_differing
        self.commit_step = commit_step
        self._agreeing_step = NO_STEP  # compared: the same everywhere
        self._agreed_step = NO_STEP  # the newest committed one of those
        self._layout: tuple[list[Held], Layout, list[int]] | None = None
        self._reserved_bytes = 0
        self._open: StateId | None = None  # announced or refused by this rank, and the verdict is not known yet
        self._done_step = NO_STEP  # all that comes of this state has come of it
        self._ended = False
        self._next: Boundary | None = None
        self._current: Boundary | None = None
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="deadpool-protect", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ main thread

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
        if not boundary.copied.is_set():
            began = time.monotonic()
            boundary.copied.wait()
            self._counters.exposed_stall_s += time.monotonic() - began
        self._engine.fence()

    def wait_done(self, step: int) -> bool:
        """Returns True when S_step is committed, refused or passed over, False when the generation ended before."""
        with self._wake:
            self._wake.wait_for(lambda: self._done_step >= step or self._cancelled.is_set())
            return self._done_step >= step

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
        for holder in self._holders:
            holder.close()
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
                self._on_trouble(error)
        finally:
            with self._wake:
                self._ended = True
                if self._next is not None:
                    self._next.settle()
                self._wake.notify_all()

    def _protect(self, boundary: Boundary) -> bool:
        """Returns False when the generation is to end; an error, but for UnavailableError, when S_k cannot be protected."""
        known = dict(self._peers)
        try:
            slot = self._slots().find_whole(boundary.state) or self._copy(boundary)
        finally:
            boundary.settle()
        if slot is None:  # a broken step does that, else the script
            raise SnapshotError("the state was changed while it was copied: only train_step may change it")
        if not self._verified(slot, known):
            return False
        self._replicate(slot)
        wanted = self._turn is not None and self._turn.before_commit()
        self._board.announce(boundary.state.step, checkpoint=wanted)
        return True

    def _refuse(self, state: StateId, error: Exception) -> None:
        if self._cancelled.is_set():
            raise UnavailableError(f"the generation ended before {state} was protected") from error
        if not isinstance(error, RefusedError):
            self._board.refuse(state.step)
            self._on_refused(state.step, (str(error) or repr(error)).splitlines()[0])

    def _take(self) -> Boundary | None:
        """Returns the next state to protect once the verdict on the one before is known; None when the generation has ended."""
        while True:
            if self._open is not None and not self._learn(self._open):
                return None
            with self._wake:
                self._wake.wait_for(lambda: self._next is not None or self._cancelled.is_set())
                boundary, self._next = self._next, None
            if boundary is None or self._schedule.is_tried(boundary.state.step):
                return boundary
            boundary.settle()
            self._done(boundary.state.step)

    def _learn(self, state: StateId) -> bool:
        """Returns True once the verdict on S_k is known, False when the generation ended before."""
        outcome = self._board.wait(state.step)
        if outcome is None:
            return False
        self._open = None
        if outcome is Outcome.REFUSED:
            self._schedule.refused(state.step)
            self._on_refused(state.step, "")
            self._done(state.step)
            return True
        asked = outcome is Outcome.CHECKPOINT
        compared = self._verifier is None or self._schedule.comparison_is_due(state.step)
        self._schedule.committed(state.step)
        if asked and not compared:
            self._schedule.asked()  # rank 0 asks again with the next state, which is compared first
        self.commit_step = state.step
        if self._agreeing_step == state.step:
            self._agreed_step = state.step
        self._counters.commits += 1
        self._on_commit(state.step)
        if self._turn is not None and self._turn.has_come(state.step, asked=asked and compared):
            self._slots().pin(state)
        self._done(state.step)
        return True

    def _done(self, step: int) -> None:
        with self._wake:
            self._done_step = step
            self._wake.notify_all()

    def _copy(self, boundary: Boundary) -> OpenSlot | None:
        """Copies S_k into the free slot and seals it; None when the sources changed meanwhile."""
        began = time.monotonic()
        layout, order = self._place(boundary.held)
        meta = pack_meta(boundary.meta)
        slot_bytes, data_offset = capacity(layout.data_bytes, len(layout.items), len(meta))
        slots = self._slots()
        index = slots.to_write((self.commit_step, self._agreed_step), slot_bytes)
        targets = slots.targets(index, layout, data_offset)
        sources = [boundary.sources[i] for i in order]
        chunks = _chunks(layout)
        tickets = [self._engine.copy(sources[a:b], targets[a:b]) for a, b in chunks]
        unchanged = boundary.unchanged()
        boundary.copied.set()
        data = slots.data(index, data_offset, layout)
        sums: list[int] = []
        for ticket, (a, b) in zip(tickets, chunks, strict=True):
            self._engine.landed(ticket)
            sums.extend(checksum(data[item.offset : item.offset + item.nbytes]) for item in layout.items[a:b])
        self._counters.copied_bytes += layout.data_bytes
        self._counters.copy_s += time.monotonic() - began
        if not unchanged:
            return None
        if self._schedule.exchange_is_due(boundary.state.step):
            layout, sums = self._classify(boundary, layout, sums, data)
        return slots.seal(index, boundary.state, layout, meta, sums, data_offset)

    def _verified(self, slot: OpenSlot, peers: Peers) -> bool:
        """Returns False when S_k must not be committed: a rank's copy is outvoted, and an earlier state was the same everywhere.

        The job goes back to that one then: every vault has kept it. The supervisor replaces the rank's process.
        """
        step, verifier = slot.state.step, self._verifier
        if verifier is None or not self._schedule.comparison_is_due(step):
            return True
        layout = slot.tables.layout
        sums = {item.key: total for item, total in zip(layout.items, slot.tables.checksums, strict=True)}
        verdict = verifier.verdict(step, sums, peers)
        if verdict is None:
            self._agreeing_step = step
            return True
        good_step, self._agreed_step = self._agreed_step, NO_STEP
        discarded = verdict.majority and good_step != NO_STEP
        if discarded:
            self._agree(peers)  # an exchange with this state would have taken the wrong copy for one of its rank's own
        if discarded and self._rank in verdict.ranks:
            self._slots().discard(slot.state)
        if self._rank == verdict.teller or self._rank not in verdict.ranks:
            self._on_differing(step, verdict, good_step if discarded else NO_STEP)
        return not discarded

    def _place(self, held: list[Held]) -> tuple[Layout, list[int]]:
        """Returns the layout of these items and, for each of its items in order, the item's index in `held`."""
        if self._layout is None or self._layout[0] is not held:
            layout = layout_of(held, self._peers)
            index = {each.key: i for i, each in enumerate(held)}
            self._layout = held, layout, [index[item.key] for item in layout.items]
        return self._layout[1], self._layout[2]

    def _classify(self, boundary: Boundary, layout: Layout, sums: list[int], data: memoryview) -> tuple[Layout, list[int]]:
        """Finds out which items other nodes hold as well; moves the data when that changes the layout."""
        by_key = {item.key: total for item, total in zip(layout.items, sums, strict=True)}
        peers = self._exchange(boundary.state.step, by_key)
        if peers is None or peers == {key: self._peers.get(key, ()) for key in peers}:
            return layout, sums
        self._agree(peers)
        moved, _ = self._place(boundary.held)
        before = bytes(data)
        offsets = {item.key: item.offset for item in layout.items}
        for item in moved.items:
            data[item.offset : item.offset + item.nbytes] = before[offsets[item.key] : offsets[item.key] + item.nbytes]
        return moved, [by_key[item.key] for item in moved.items]

    def _agree(self, peers: Peers) -> None:
        """From now on these are who holds what as well."""
        self._peers.clear()
        self._peers.update(peers)
        self._layout = None

    def _replicate(self, slot: OpenSlot) -> None:
        """Returns when every holder has acknowledged the slot's unique part; SnapshotError: one refuses, or is out of reach."""
        began = time.monotonic()
        header = slot.header.as_replica()
        request = Put(
            rank=self._rank,
            generation=header.generation,
            step=header.step,
            keep_step=self.commit_step,
            data_offset=header.data_offset,
            data_bytes=header.data_bytes,
            tables_bytes=header.tables_bytes,
            sender_generation=self._generation,
        )
        for holder in self._holders:
            until_s = time.monotonic() + PATIENCE_S
            while not self._cancelled.is_set():
                try:
                    if header.slot_bytes > self._reserved_bytes:
                        holder.reserve(self._rank, header.slot_bytes)
                    holder.put(request, [slot.data[: header.data_bytes]], bytes(slot.raw_tables), header.to_page())
                    break
                except UnavailableError as error:
                    if time.monotonic() > until_s:
                        raise SnapshotError(str(error)) from error
                    self._cancelled.wait(RETRY_S)
        if self._cancelled.is_set():
            raise UnavailableError("the generation ended before the replicas were acknowledged")
        self._reserved_bytes = max(self._reserved_bytes, header.slot_bytes)
        self._counters.replicated_bytes += header.data_bytes * len(self._holders)
        self._counters.replicate_s += time.monotonic() - began


def layout_of(held: Sequence[Held], peers: Peers) -> Layout:
    sets = sorted({peers.get(each.key, ()) for each in held} - {()})
    index = {peer_set: i for i, peer_set in enumerate(sets)}
    items = (
        Item(
            key=each.key,
            offset=0,
            nbytes=each.tensor.numel() * each.tensor.element_size(),
            dtype=type_name(each.tensor.dtype),
            shape=tuple(each.tensor.shape),
            peers=index.get(peers.get(each.key, ()), UNIQUE),
        )
        for each in held
    )
    return Layout.place(items, sets)


def _chunks(layout: Layout) -> list[tuple[int, int]]:
    """Returns ranges of items of about CHUNK_BYTES each, so that one lands while the next is copied."""
    chunks, begin, size = [], 0, 0
    for index, item in enumerate(layout.items):
        size += item.nbytes
        if size >= CHUNK_BYTES:
            chunks.append((begin, index + 1))
            begin, size = index + 1, 0
    if begin < len(layout.items):
        chunks.append((begin, len(layout.items)))
    return chunks
