"""The process group that torch and the script hold: one object for ever, an inner group per generation.

Every method of dist.ProcessGroup is one of these: a collective (found by introspection, forwarded to the inner group while its
generation is whole, muted otherwise), a question that is answered from the inner group, or something named in NOT_FORWARDED.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from deadpool.proto.call_record import CallRecord
from deadpool.trainer_hooks.groups import muted, reduce_scatter
from deadpool.trainer_hooks.groups.generation import Calls, Generation
from deadpool.trainer_hooks.groups.inner import InnerGroup, Membership
from deadpool.trainer_hooks.groups.ledger import Ledger
from deadpool.trainer_hooks.groups.messages import Messages, small_message
from deadpool.trainer_hooks.groups.present import NeedsAllError, Present
from deadpool.trainer_hooks.groups.stores import GenerationStore
from deadpool.trainer_hooks.groups.works import (
    GroupWork,
    MutedWork,
    ScatteredWork,
    SlicedWork,
    StreamWork,
    ThreadWork,
    call_in_daemon,
    is_usage_error,
)
from deadpool.trainer_hooks.torch_internals import FakeProcessGroup, GroupName, HashStore, PrefixStore, Store

BACKEND = "deadpool"
_TO_ONE = ("send", "recv", "recv_anysource")

NOT_FORWARDED = {
    "rank": "never changes: the base class answers",
    "size": "never changes: the base class answers",
    "boxed": "about this object, not the inner one",
    "unbox": "about this object, not the inner one",
    "_id": "about this object, not the inner one",
    "group_desc": "kept by the base class",
    "bound_device_id": "kept by the base class; a bound device would make c10d split communicators instead of opening groups",
    "use_pg_for_symm_mem_rendezvous": "kept by the base class",
    "_register_backend": "the inner group has the backends",
    "_set_default_backend": "the inner group has the backends",
    "_set_sequence_number_for_group": "done when an inner group opens",
    "merge_remote_group": "not supported: a group's members do not change",
    "split_group": "not supported: new_group makes a group that can be opened again",
}


class Registry(Protocol):
    """What a group needs of the registry that made it."""

    record: CallRecord | None
    store: GenerationStore
    on_muted: Callable[[], None]
    messages: Messages
    needs: tuple[int, ...]

    @property
    def muted(self) -> bool: ...

    @property
    def rehearsing(self) -> bool: ...

    def remove(self, group: "Group") -> None: ...


class Group(dist.ProcessGroup):
    """Made by the backend's creator (registry.py). The names of methods are torch's, in all spellings that Python or C++ uses.

    `made_as`: its number among the groups of these ranks that this process has made. `met_as`: the name under which its members
    have opened it, the same on all of them; "" while it never was open.
    """

    def __init__(self, registry: Registry, membership: Membership, timeout: timedelta, made_as: str) -> None:
        super().__init__(membership.rank, membership.size)  # type: ignore[call-arg]
        self.membership = membership
        self.made_as = made_as
        self.timeout = timeout
        self.met_as = ""
        self._registry = registry
        self._opened: tuple[InnerGroup, Any, Generation, Calls] | None = None
        self._muted: tuple[InnerGroup, Any, Generation, Calls] | None = None  # what is open, in a rehearsal
        self._present: Present | None = None  # who of its members is, in the open generation; None: all
        self._closed = "it was destroyed"  # why no call is possible, when it is not open
        self._fake: dist.ProcessGroup | None = None
        self._coalescing: Any = None
        self._row: int | None = None

    def attach(self, inner: InnerGroup, generation: Generation, name: str, present: Present | None = None) -> None:
        """Uses `inner` from now on, which may be what was open before; calls are numbered from 1 again.

        A generation that has broken aborts it immediately, unless it may stay open.
        """
        assert inner.group is not None
        self.met_as, self._present = name, present
        self._label_row()
        place = (self.membership.rank, self.membership.size)
        calls = Calls(self._registry.record, self._row or 0, place, generation.call_time, inner.ledger)
        self._opened, self._muted = (inner, inner.group, generation, calls), None
        generation.add(inner, calls)

    def mute(self, on: bool) -> None:
        """While on, collectives are muted although the inner group stays open."""
        if on and self._opened is not None:
            self._opened, self._muted = None, self._opened
        elif not on and self._muted is not None:
            self._opened, self._muted = self._muted, None

    def forget(self) -> None:
        """Its generation has broken and frees what it has aborted; until `attach` all calls are muted, as before."""
        opened = self._opened or self._muted
        if opened is not None and opened[0].is_shut:
            self._opened = self._muted = None

    def open_still(self, present: Present | None) -> InnerGroup | None:
        """Returns what is open of it in the broken generation, if its members are those that are present in the next one."""
        opened = self._opened or self._muted
        if opened is None or opened[0].membership.ranks != self.membership.inner(present).ranks:
            return None
        return opened[0]

    def leave_closed(self, name: str, generation: int) -> None:
        """Not all its members hold it in this generation: calls raise an error."""
        self._closed = (
            f"a process that has taken over a rank in generation {generation} has not made it: "
            "make it before the loop, or in the step that uses it"
        )
        self.met_as = name
        self.detach()

    def detach(self) -> None:
        """Aborts and frees the inner group, if there is one."""
        opened, self._opened, self._muted = self._opened or self._muted, None, None
        if opened is not None:
            inner, _, generation, calls = opened
            generation.remove(inner, calls)
        if self._row is not None and self._registry.record is not None:
            self._registry.record.remove_group(self._row)
            self._row = None

    def __del__(self) -> None:
        self.detach()

    def _label_row(self) -> None:
        """Names its row of the call record, as all its members do."""
        record = self._registry.record
        if record is None:
            return
        description = self.group_desc
        label = self.met_as if description in ("", "undefined") else f"{description}:{self.met_as}"
        if self._row is None:
            self._row = record.add_group(label)
        else:
            record.rename_group(self._row, label)

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        if self._row is not None:
            self._label_row()

    def _live(self) -> Any:  # torch's stubs lack half of ProcessGroup
        opened = self._opened
        return None if opened is None or opened[2].broken else opened[1]

    def _live_or_fake(self) -> Any:
        """The inner group, or one without peers that can be asked the same questions."""
        live = self._live()
        if live is not None:
            return live
        if self._fake is None:
            self._fake = _fake_group(self.membership)
        return self._fake

    def _check_muted(self, operation: str) -> None:
        """RuntimeError where a call that finds no open group would not be muted but lost."""
        if not self._registry.muted:
            raise RuntimeError(f"{operation}: the process group {self.met_as} is not open: {self._closed}")
        self._registry.on_muted()

    def _reduce_scatter(self, inner: Any, args: tuple[Any, ...]) -> tuple[dist.Work, reduce_scatter.Finish] | None:
        return reduce_scatter.begin(inner, args, self.membership.rank, self.membership.size)

    def _muted_work(self, tensors: list[torch.Tensor]) -> MutedWork:
        neighbour = (self.membership.rank + 1) % self.membership.size  # a plausible source; torch refuses oneself
        return MutedWork(tensors, neighbour)

    # -- who it is

    def getBackendName(self) -> str:
        return BACKEND

    def name(self) -> str:
        return BACKEND

    _get_backend_name = name

    def getGroupName(self) -> str:
        return self.membership.name

    @property
    def group_name(self) -> GroupName:
        return GroupName(self.membership.name)

    def setGroupName(self, name: str) -> None:
        assert name == self.membership.name, f"group {self.membership.name} cannot become {name}"

    _set_group_name = setGroupName

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in self.membership.devices]

    def get_group_store(self) -> Store:
        return PrefixStore(self.met_as, self._registry.store)

    # -- questions that the inner group answers

    def _get_backend(self, device: torch.device) -> Any:
        return self._live_or_fake()._get_backend(device)

    def _backend_id(self, backend_type: Any) -> int:
        return int(self._live_or_fake()._backend_id(backend_type))

    def _get_sequence_number_for_group(self) -> int:
        live = self._live()
        return 0 if live is None else int(live._get_sequence_number_for_group())

    def _has_hooks(self) -> bool:
        live = self._live()
        return live is not None and bool(live._has_hooks())

    def _register_on_completion_hook(self, hook: Any) -> None:
        self._live_or_fake()._register_on_completion_hook(hook)

    def _wait_for_pending_works(self) -> None:
        live = self._live()
        if live is not None:
            live._wait_for_pending_works()

    def _enable_collectives_timing(self) -> None:
        live = self._live()
        if live is not None:
            live._enable_collectives_timing()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of this and of all later generations' operations."""
        self.timeout = timeout
        live = self._live()
        if live is not None:
            live.set_timeout(timeout)

    # -- ends

    def shutdown(self) -> None:
        """destroy_process_group(group): the group is not opened again."""
        self._registry.remove(self)

    abort = shutdown

    # -- coalescing (on CUDA): what is begun on an inner group is ended on the same one, whatever happened in between

    def _start_coalescing(self, device: torch.device) -> None:
        live = self._live()
        if live is not None:
            live._start_coalescing(device)
        self._coalescing = live

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        begun, self._coalescing = self._coalescing, None
        opened = self._opened
        if begun is None or opened is None or opened[1] is not begun:
            self._registry.on_muted()
            return self._muted_work([])
        opened[3].enter(b"coalesced")
        try:
            return StreamWork(opened[2], opened[3], begun._end_coalescing(device), "coalesced", ())
        except RuntimeError as error:
            if is_usage_error(error) and not opened[2].broken:
                raise
            opened[2].fail(f"coalesced: {error}")
            return self._muted_work([])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        opened = self._opened
        if opened is None or opened[2].broken:
            self._check_muted("monitored_barrier")
            return
        _, inner, generation, calls = opened

        def meet() -> None:
            inner.monitored_barrier(timeout or self.timeout, wait_all_ranks)
            calls.ledger.end()

        calls.enter(b"monitored_barrier")
        call_in_daemon(generation, "monitored_barrier", meet)
        if not generation.broken:
            calls.complete()

    def merge_remote_group(self, *args: Any, **kwargs: Any) -> dist.ProcessGroup:
        raise NotImplementedError("a deadpool group does not change its members: make the group with new_group instead")

    def split_group(self, *args: Any, **kwargs: Any) -> dist.ProcessGroup:
        raise NotImplementedError("a deadpool group cannot be split: make the group with new_group instead")

    splitGroup = split_group
    mergeRemoteGroup = merge_remote_group


def collectives() -> list[str]:
    """Returns the methods of the installed torch's ProcessGroup that return a Work, in all their spellings."""
    return [
        name
        for name in dir(dist.ProcessGroup)
        if name != "_end_coalescing" and re.search(r"-> \S*Work\b", getattr(dist.ProcessGroup, name).__doc__ or "")
    ]


_work_classes: dict[str, type[GroupWork]] = {}  # of each collective on the CPU, found at its first call


def _work_class(operation: str, inner: dist.Work) -> type[GroupWork]:
    """Gloo's works that have a future can be waited for in slices; the others cannot."""
    found = _work_classes.get(operation)
    if found is None:
        try:
            inner.get_future()
            found = SlicedWork
        except RuntimeError:
            found = ThreadWork
        _work_classes[operation] = found
    return found


def _collective(operation: str) -> Callable[..., dist.Work]:
    method = getattr(dist.ProcessGroup, operation)
    label = operation.encode()[:24]
    to_one = operation in _TO_ONE
    may_be_scattered = operation in reduce_scatter.OPERATIONS

    def call(self: Group, *args: Any, **kwargs: Any) -> dist.Work:
        opened = self._opened
        if opened is not None and not opened[2].broken:
            _, inner, generation, calls = opened
            message = small_message(operation, self.membership.rank, args)
            calls.enter(label)  # in the ledger before the last look at the break: who reads that after it misses no call
            try:
                if self._present is not None:
                    args, kwargs = self._present.fit(operation, args, kwargs)
                if to_one:
                    _account(calls.ledger, operation, args)
                begun, work = None, None
                if not generation.broken:
                    begun = self._reduce_scatter(inner, args) if may_be_scattered and not kwargs else None
                    work = begun[0] if begun is not None else method(inner, *args, **kwargs)
            except NeedsAllError as error:
                self._registry.needs = error.ranks
                generation.fail(str(error))
            except RuntimeError as error:
                calls.ledger.failed = True
                if is_usage_error(error) and not generation.broken:
                    raise
                generation.fail(f"{operation}: {error}")
            else:
                if begun is not None:
                    return ScatteredWork(generation, calls, begun[0], operation, args, begun[1])
                if work is not None:
                    on_device = self.membership.has_nccl and _is_on_cuda(args)
                    kind = StreamWork if on_device else _work_class(operation, work)
                    ours = kind(generation, calls, work, operation, (*args, *kwargs.values()))
                    if message is not None:
                        ours.when_done = partial(self._registry.messages.keep, f"{self.made_as}/{message[0]}", message[1])
                    return ours
        self._check_muted(operation)
        given = (*args, *kwargs.values())
        message = small_message(operation, self.membership.rank, args) if self._registry.rehearsing else None
        if message is None or not self._registry.messages.answer(f"{self.made_as}/{message[0]}", message[1]):
            muted.answer(operation, self.membership.rank, self.membership.size, given)
        return self._muted_work(muted.tensors_in(given[0]) if given else [])

    call.__name__ = operation
    call.__doc__ = f"dist.ProcessGroup.{operation}, or its answer while the generation is broken or muted."
    return call


def _account(ledger: Ledger, operation: str, args: tuple[Any, ...]) -> None:
    """Notes from where or to whom the message is that is about to be received or sent."""
    if operation == "send":
        ledger.sends(int(args[1]))
    else:
        ledger.receives(int(args[1]) if operation == "recv" else None)


def _is_on_cuda(args: tuple[Any, ...]) -> bool:
    tensors = muted.tensors_in(list(args[:2]))
    if tensors:
        return tensors[0].is_cuda
    device = getattr(args[0], "device", None) if args else None  # barrier's options
    return device is None or device.type != "cpu"


for _operation in collectives():
    setattr(Group, _operation, _collective(_operation))


def _fake_group(membership: Membership) -> dist.ProcessGroup:
    group = dist.ProcessGroup(HashStore(), membership.rank, membership.size)
    backend = FakeProcessGroup._create_internal(membership.rank, membership.size)
    for device in membership.devices:
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    return group
