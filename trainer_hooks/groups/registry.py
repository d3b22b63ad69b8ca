"""All reformable groups of this process: the torch.distributed backend "deadpool" and the way from one generation to the next.

Live: calls go to inner groups. Muted: calls are answered without communicating: from the break of a generation to the next
reform, in a joiner before its first one (nothing was ever opened), and in a rehearsal. A reform opens the groups again, same
objects, same ranks, on the new store; a group whose members all find that nothing of it is under way has stayed open.
"""

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from deadpool.host.errors import UnavailableError
from deadpool.proto.call_record import CallRecord
from deadpool.trainer_hooks import torch_internals
from deadpool.trainer_hooks.device import Device
from deadpool.trainer_hooks.groups import torch_patches
from deadpool.trainer_hooks.groups.call_time import CallTime
from deadpool.trainer_hooks.groups.generation import Generation
from deadpool.trainer_hooks.groups.group import BACKEND, Group
from deadpool.trainer_hooks.groups.inner import Membership
from deadpool.trainer_hooks.groups.messages import Messages
from deadpool.trainer_hooks.groups.names import GroupNames, numbered, ranks_text
from deadpool.trainer_hooks.groups.nccl import is_nccl
from deadpool.trainer_hooks.groups.opening import Opening, Wanted
from deadpool.trainer_hooks.groups.present import Present, among
from deadpool.trainer_hooks.groups.stores import GenerationStore
from deadpool.trainer_hooks.torch_internals import Store

log = logging.getLogger(__name__)

# Of an operation, unless the script says otherwise. Not a hang detector: it bounds how long a stuck one is kept aside.
OPERATION_TIMEOUT = timedelta(minutes=10)
_ENDED_TIMEOUT_S = 0.5  # old operations end within milliseconds of the abort; one that does not can only fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Reformed:
    """How many groups have stayed open, and were opened, of those whose first member this process is: each counts once in all."""

    kept: int
    opened: int


class Groups:
    """The registry. One per process; thread-safe where said."""

    def __init__(
        self,
        *,
        record: CallRecord | None,
        host: str,
        on_broken: Callable[[int, str], None],
        on_muted: Callable[[], None] = lambda: None,
        before_abort: Callable[[], None] = lambda: None,
        gloo_alone: bool = False,
        device: Device | None = None,
    ) -> None:
        """`host`: the address that this node's Gloo listens on. `on_broken(generation, error)` is called, from any
        thread, when a collective fails by itself: before its generation breaks; more than once when several fail at a time.
        `on_muted()` is called, by the thread that calls, before a call returns without having communicated; it may not return.
        `before_abort()` is called, from any thread, when a generation breaks, before its operations in flight are cut off.
        `gloo_alone`: without NCCL, for ranks that share a GPU. `device`: on which NCCL's calls end, to time them.
        """
        self._gloo_alone, self._device = gloo_alone, device
        self.record = record
        self.on_muted = on_muted
        self.store = GenerationStore(on_muted)  # what c10d keeps as its default store
        self.messages = Messages()
        self._host = host
        self._on_broken, self._before_abort = on_broken, before_abort
        self._lock = threading.RLock()
        self._members: list[weakref.ref[Group]] = []  # in the order of their making
        self._current = self._new_generation(0)
        self._names = GroupNames({})
        self._made = GroupNames({})  # all that this process ever made
        self._rows: dict[str, int] = {}  # set of ranks -> where the record counts how often a group of them was opened
        self._never_opened = False
        self._rehearsing = False
        self._client: Store | None = None
        self._reforming: tuple[int, threading.Event] | None = None
        self._timeout = OPERATION_TIMEOUT
        self._excluded: frozenset[int] = frozenset()  # ranks, in the present generation
        self.needs: tuple[int, ...] = ()  # those of them without which a call of this generation has no result

    @property
    def generation(self) -> int:
        return self._current.number

    @property
    def broken(self) -> bool:
        return self._current.broken

    @property
    def call_time(self) -> CallTime:
        """Of the present generation."""
        return self._current.call_time

    @property
    def muted(self) -> bool:
        """Collectives are answered without communicating."""
        return self._never_opened or self._rehearsing or self._current.broken

    @property
    def rehearsing(self) -> bool:
        """Muted calls are a joiner's construction and rehearsal, or that of a process that has resumed from a file."""
        return (self._never_opened or self._rehearsing) and not self._current.broken

    def rehearse(self, on: bool) -> None:
        """Between steps of a live generation: collectives are muted, as in a joiner, until it is switched off again."""
        self._rehearsing = on
        for group in self._alive():
            group.mute(on)

    def init_default(
        self, *, rank: int, world_size: int, generation: int, store: Store | None, timeout: timedelta | None = None
    ) -> None:
        """Initialises torch.distributed with our backend. `store` None: muted, for a joiner; never blocks.

        `store`: a client that nobody else uses from now on (a client is locked while it waits).

        A break during the opening lets it return with a broken generation. UnavailableError when the opening fails otherwise.
        """
        self._timeout = timeout or OPERATION_TIMEOUT
        self._current = self._new_generation(generation)
        self._never_opened = store is None
        if store is not None:
            self._client = store
            self.store.attach(self._client, lambda current=self._current: current.broken)  # type: ignore[misc]
        _use(self)
        dist.init_process_group(BACKEND, store=self.store, rank=rank, world_size=world_size, timeout=self._timeout)
        torch_patches.install(lambda: self.muted)

    def create(self, options: Any, backend_options: Any) -> Group:
        """The backend's creator: makes a group for c10d, open unless the generation is muted or broken."""
        devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        membership = Membership(
            name=str(options.group_id),
            rank=options.group_rank,
            size=options.group_size,
            global_ranks=tuple(options.global_ranks_in_group),
            devices=devices,
            nccl_options=backend_options if is_nccl(backend_options) else None,
            gloo_alone=self._gloo_alone,
        )
        timeout = self._timeout if options.timeout == default_pg_timeout else options.timeout
        made_as, _ = self._made.next(ranks_text(membership.global_ranks))
        group = Group(self, membership, timeout, made_as)
        with self._lock:
            self._members.append(weakref.ref(group))
        current, client = self._current, self._client
        if not self._never_opened and not current.broken and client is not None:
            self._open_new(group, current, client)
        return group

    def _open_new(self, group: Group, current: Generation, client: Store) -> None:
        """Opens a group that was just made; the call record shows who has come to this, and who waits."""
        ranks = ranks_text(group.membership.global_ranks)
        name, number = self._names.next(ranks)
        if self.record is not None:
            self.record.entered(self._row(ranks), b"new_group", number)
        timeout_s = group.timeout.total_seconds()
        present = self._present(group, self._excluded)
        wanted = Wanted(name=name, membership=group.membership.inner(present), timeout_s=timeout_s)
        opening = Opening([wanted], current.number, client, self._host, timeout_s)
        try:
            inners = opening.wait(lambda: current.broken)
        except UnavailableError as error:
            current.fail(str(error))
            return
        group.attach(inners[name], current, name, present)
        group.mute(self._rehearsing)
        if self.record is not None:
            self.record.completed(self._row(ranks), number)

    def _row(self, ranks: str) -> int:
        assert self.record is not None
        if ranks not in self._rows:
            self._rows[ranks] = self.record.add_group(ranks)
        return self._rows[ranks]

    def break_generation(self, generation: int, reason: str) -> None:
        """Mutes, settles all works in flight and aborts. Any thread; idempotent; ignored for an older generation."""
        with self._lock:
            if self._reforming is not None and generation >= self._reforming[0]:
                self._reforming[1].set()
            current = self._current
            if self._never_opened or generation < current.number:
                return
        current.break_up(reason)

    def lose_connections(self) -> None:
        """Breaks the open groups' connections and nothing else, as a network that fails for a moment. Any thread."""
        self._current.lose_connections()

    def have_ended(self) -> bool:
        """Returns True once no operation of the broken generation runs: nothing of it will touch a tensor any more.

        False when one is stuck.
        """
        return self._current.wait_until_ended(_ENDED_TIMEOUT_S)

    def let_go(self) -> None:
        """Frees what the broken generation has opened, while this process waits for the others.

        Gloo's threads are joined with the interpreter's lock held, up to 10 ms for each group: later a step would wait for it.
        """
        if self.broken:
            for group in self._alive():
                group.forget()
            self._current.let_go()

    def reform(
        self,
        *,
        generation: int,
        store: Store,
        timeout_s: float,
        cancelled: threading.Event,
        excluded: frozenset[int] = frozenset(),
    ) -> Reformed:
        """Opens on `store` (a client for nobody else) every group that all its members hold, and is live in `generation`.

        A group of which all members find that nothing is under way stays open as it was.

        Of the `excluded` ranks nothing is expected: each group is opened among its other members.

        A call on one that is not open then raises. UnavailableError when it fails, takes longer than `timeout_s`, `cancelled` is
        set or the generation is broken meanwhile; the groups then stay muted, and nothing of the attempt touches a later one.
        """
        deadline_s = time.monotonic() + timeout_s
        overtaken = threading.Event()
        with self._lock:
            old = self._current
            assert self.muted, f"generation {old.number} is live: break it before reforming in {generation}"
            assert generation >= old.number, f"generation {generation} is older than {old.number}"
            self._reforming = (generation, overtaken)
        try:
            if not old.wait_until_ended(min(_ENDED_TIMEOUT_S, timeout_s)):
                log.warning("generation %d: %s are stuck and stay aside", old.number, old.pending_operations())
            members = self._alive()
            names = numbered(ranks_text(group.membership.global_ranks) for group in members)
            presents = [self._present(group, excluded) for group in members]
            wanted = [self._wanted(*each) for each in zip(members, names, presents, strict=True)]
            opening = Opening(wanted, generation, store, self._host, deadline_s - time.monotonic(), held=True)
            inners = opening.wait(lambda: cancelled.is_set() or overtaken.is_set())
            new = self._new_generation(generation)
            with self._lock:
                for group, name, present in zip(members, names, presents, strict=True):
                    if name in inners:
                        group.attach(inners[name], new, name, present)
                        group.set_timeout(group.timeout)  # where it was changed while calls were muted
                    else:
                        group.leave_closed(name, generation)
                self._count_from(generation, Counter(name.rpartition("#")[0] for name in inners))
                self._current, self._never_opened, self._client = new, False, store
                self._excluded, self.needs = excluded, ()
                self.store.attach(store, lambda: new.broken)
            kept = [each.inner for each in wanted if each.inner is not None and inners.get(each.name) is each.inner]
            old.keep(kept)
            old.let_go()
            if overtaken.is_set() or cancelled.is_set():  # since the opening last looked
                new.break_up("broken while its groups opened")
                raise UnavailableError(f"generation {generation} was broken while its groups opened")
            firsts = {each.name for each in wanted if each.name in inners and each.membership.rank == 0}
            kept_names = {each.name for each in wanted if each.inner in kept}
            return Reformed(kept=len(firsts & kept_names), opened=len(firsts - kept_names))
        finally:
            with self._lock:
                self._reforming = None

    def _new_generation(self, number: int) -> Generation:
        call_time = CallTime(self._device)
        return Generation(number, self._on_broken, self.on_muted, self._before_abort, call_time)

    @staticmethod
    def _wanted(group: Group, name: str, present: Present | None) -> Wanted:
        """Returns the group as it is to be in the next generation, with what is open of it still, if that may stay open."""
        membership, timeout_s = group.membership.inner(present), group.timeout.total_seconds()
        inner = group.open_still(present)
        balance = inner.balance() if inner is not None else None
        return Wanted(name=name, membership=membership, timeout_s=timeout_s, inner=inner if balance else None, balance=balance)

    @staticmethod
    def _present(group: Group, excluded: frozenset[int]) -> Present | None:
        return among(group.membership.ranks, group.membership.rank, excluded) if excluded else None

    def _count_from(self, generation: int, reopened: Counter[str]) -> None:
        """Numbers the groups made from here on as all ranks do: ours after those that were opened again, c10d's own as well."""
        self._names = GroupNames(reopened)
        torch_internals.count_groups_from(generation)
        for ranks, row in self._rows.items():
            assert self.record is not None
            self.record.entered(row, b"", reopened[ranks])
            self.record.completed(row, reopened[ranks])

    def remove(self, group: Group) -> None:
        """The script destroys one group."""
        with self._lock:
            self._members = [ref for ref in self._members if ref() is not group]
        group.detach()

    def close(self) -> None:
        """At exit: aborts what is open and takes the patches away. Collectives are muted from here on."""
        current = self._current
        current.break_up("closed")
        torch_patches.remove()
        if not current.wait_until_ended(_ENDED_TIMEOUT_S):
            log.warning("generation %d: %s are stuck at exit", current.number, current.pending_operations())
        for group in self._alive():
            group.detach()
        current.let_go()

    def _alive(self) -> list[Group]:
        with self._lock:
            self._members = [ref for ref in self._members if ref() is not None]
            return [group for ref in self._members if (group := ref()) is not None]


_in_use: Groups | None = None


def _use(groups: Groups) -> None:
    """Makes `groups` the one that the backend creates groups in; a backend can be registered once per process only."""
    global _in_use
    if _in_use is None:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    _in_use = groups


def _create(options: Any, backend_options: Any) -> Group:
    assert _in_use is not None
    return _in_use.create(options, backend_options)
