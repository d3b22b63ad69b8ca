"""All reformable groups of this process: the torch.distributed backend "deadpool" and the way from one generation to the next.

LIVE: calls go to inner groups. BROKEN: from the break to the next reform, calls are echoed. MUTED: a joiner before its first
reform: echoed as well, and nothing was ever opened. A reform opens every group again, same objects, same ranks, on the new store.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.constants import default_pg_timeout

from deadpool.host.errors import UnavailableError
from deadpool.proto.call_record import CallRecord
from deadpool.trainer_hooks.groups import torch_patches
from deadpool.trainer_hooks.groups.generation import Generation
from deadpool.trainer_hooks.groups.group import BACKEND, Group
from deadpool.trainer_hooks.groups.inner import Membership
from deadpool.trainer_hooks.groups.opening import Opening
from deadpool.trainer_hooks.groups.stores import GenerationStore

log = logging.getLogger(__name__)

# Of an operation, unless the script says otherwise. Not a hang detector: it bounds how long a stuck one is kept aside.
OPERATION_TIMEOUT = timedelta(minutes=10)
_QUIET_TIMEOUT_S = 0.5  # old operations end within milliseconds of the abort; one that does not has lost a send and can only fail


class Groups:
    """The registry. One per process; thread-safe where said."""

    def __init__(self, *, record: CallRecord | None, host: str, on_broken: Callable[[int, str], None]) -> None:
        """`host`: the address that this node's Gloo listens on. `on_broken(generation, error)` is called, from any
        thread, when a collective fails by itself: before its generation breaks; more than once when several fail at a time."""
        self.record = record
        self.store = GenerationStore()  # what c10d keeps as its default store
        self._host = host
        self._on_broken = on_broken
        self._lock = threading.RLock()
        self._members: list[weakref.ref[Group]] = []  # in the order of their making, which is the same on every rank
        self._current = Generation(0, on_broken)
        self._muted = False
        self._rehearsing = False
        self._client: Store | None = None
        self._reforming: tuple[int, threading.Event] | None = None
        self._timeout = OPERATION_TIMEOUT

    @property
    def generation(self) -> int:
        return self._current.number

    @property
    def broken(self) -> bool:
        return self._current.broken

    @property
    def muted(self) -> bool:
        return self._muted

    @property
    def quiet(self) -> bool:
        """Collectives are echoed."""
        return self._muted or self._rehearsing or self._current.broken

    def rehearse(self, on: bool) -> None:
        """Between steps of a live generation: collectives are echoed, as in a joiner, until it is switched off again."""
        self._rehearsing = on
        for group in self._alive():
            group.suspend(on)

    def init_default(
        self, *, rank: int, world_size: int, generation: int, store: Store | None, timeout: timedelta | None = None
    ) -> None:
        """Initialises torch.distributed with our backend. `store` None: muted, for a joiner; never blocks.

        `store`: a client that nobody else uses from now on (a client is locked while it waits).

        A break during the opening lets it return with a broken generation. UnavailableError when the opening fails otherwise.
        """
        self._timeout = timeout or OPERATION_TIMEOUT
        self._current = Generation(generation, self._on_broken)
        self._muted = store is None
        if store is not None:
            self._client = store
            self.store.attach(self._client, lambda current=self._current: current.broken)  # type: ignore[misc]
        _use(self)
        dist.init_process_group(BACKEND, store=self.store, rank=rank, world_size=world_size, timeout=self._timeout)
        torch_patches.install(self)

    def create(self, options: Any, _backend_options: Any) -> Group:
        """The backend's creator: makes a group for c10d, open unless the generation is muted or broken."""
        devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        membership = Membership(
            name=str(options.group_id),
            rank=options.group_rank,
            size=options.group_size,
            global_ranks=tuple(options.global_ranks_in_group),
            devices=devices,
        )
        timeout = self._timeout if options.timeout == default_pg_timeout else options.timeout
        group = Group(self, membership, timeout)
        with self._lock:
            self._members.append(weakref.ref(group))
        current, client = self._current, self._client
        if not self._muted and not current.broken and client is not None:
            opening = Opening([group], current.number, client, self._host, timeout.total_seconds())
            try:
                (inner,) = opening.wait(lambda: current.broken)
            except UnavailableError as error:
                current.fail(str(error))
            else:
                group.attach(inner, current)
                group.suspend(self._rehearsing)
        return group

    def break_generation(self, generation: int, reason: str) -> None:
        """Mutes, settles all works in flight and aborts. Any thread; idempotent; ignored for an older generation."""
        with self._lock:
            if self._reforming is not None and generation >= self._reforming[0]:
                self._reforming[1].set()
            current = self._current
            if self._muted or generation < current.number:
                return
        current.break_up(reason)

    def lose_connections(self) -> None:
        """Breaks the open groups' connections and nothing else, as a network that fails for a moment. Any thread."""
        self._current.lose_connections()

    def reform(self, *, generation: int, store: Store, timeout_s: float, cancelled: threading.Event) -> None:
        """Opens every group again on `store` (a client for nobody else) and is LIVE in `generation`.

        UnavailableError when that fails, takes longer than `timeout_s`, `cancelled` is set or the generation is broken
        meanwhile; the groups then stay as they were (broken or muted), and nothing of the attempt touches a later one.
        """
        deadline_s = time.monotonic() + timeout_s
        overtaken = threading.Event()
        with self._lock:
            old = self._current
            assert self.quiet, f"generation {old.number} is live: break it before reforming in {generation}"
            assert generation >= old.number, f"generation {generation} is older than {old.number}"
            self._reforming = (generation, overtaken)
        try:
            if not old.wait_until_quiet(min(_QUIET_TIMEOUT_S, timeout_s)):
                log.warning("generation %d: %s are stuck and stay aside", old.number, old.pending_operations())
            members = self._alive()
            opening = Opening(members, generation, store, self._host, deadline_s - time.monotonic())
            inners = opening.wait(lambda: cancelled.is_set() or overtaken.is_set())
            new = Generation(generation, self._on_broken)
            with self._lock:
                for group, inner in zip(members, inners, strict=True):
                    group.attach(inner, new)
                self._current, self._muted, self._client = new, False, store
                self.store.attach(store, lambda: new.broken)
            old.bury()
            if overtaken.is_set():
                new.break_up("broken while its groups opened")
                raise UnavailableError(f"generation {generation} was broken while its groups opened")
        finally:
            with self._lock:
                self._reforming = None

    def remove(self, group: Group) -> None:
        """The script destroys one group."""
        with self._lock:
            self._members = [ref for ref in self._members if ref() is not group]
        group.detach()

    def close(self) -> None:
        """At exit: aborts what is open and takes the shims away. Collectives are echoed from here on."""
        current = self._current
        current.break_up("closed")
        torch_patches.remove()
        if not current.wait_until_quiet(_QUIET_TIMEOUT_S):
            log.warning("generation %d: %s are stuck at exit", current.number, current.pending_operations())
        for group in self._alive():
            group.detach()
        current.bury()

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
