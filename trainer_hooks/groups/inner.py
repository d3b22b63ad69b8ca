"""An open group: the torch process group of one generation inside one of ours, with what it takes to abort it.

It is a full dist.ProcessGroup with Gloo for CPU tensors and, where there is CUDA, NCCL for CUDA tensors (nccl.py).
"""

import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.trainer_hooks.groups import nccl, sockets
from deadpool.trainer_hooks.groups.balance import Balance
from deadpool.trainer_hooks.groups.ledger import Ledger
from deadpool.trainer_hooks.groups.present import Present
from deadpool.trainer_hooks.torch_internals import GroupName, PrefixStore, Store

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a group is, in every generation alike; or its inner group, of those present. `global_ranks`: () for the default group.

    `nccl_options`: what the script has asked for (pg_options of new_group). `gloo_alone`: Gloo serves CUDA tensors as well.
    """

    name: str
    rank: int
    size: int
    global_ranks: tuple[int, ...]
    devices: tuple[str, ...]  # "cpu", or "cpu" and "cuda"
    nccl_options: Any = None
    gloo_alone: bool = False

    @property
    def has_nccl(self) -> bool:
        return "cuda" in self.devices and not self.gloo_alone

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of its members, by their places."""
        return self.global_ranks or tuple(range(self.size))

    def inner(self, present: Present | None) -> "Membership":
        """Returns what its inner group is, of the members present; None: all are."""
        if present is None:
            return self
        return replace(
            self,
            rank=present.places.index(self.rank),
            size=len(present.places),
            global_ranks=tuple(self.ranks[place] for place in present.places) if self.global_ranks else (),
        )


class InnerGroup:
    """Made by `connect`. `shut` may come from any thread, at any time, more than once.

    `opened`: when and as what, the same text at all members. `ledger`: of all calls since then, in whichever generations.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        connections: list[socket.socket],
        communicator: nccl.Communicator | None,
        membership: Membership,
        opened: str,
    ) -> None:
        self.group: dist.ProcessGroup | None = group
        self._connections = connections
        self.communicator = communicator
        self.membership = membership
        self.opened = opened
        self.ledger = Ledger()
        self._lock = threading.Lock()
        self._ended: threading.Event | None = None

    def shut(self) -> None:
        """Ends the group's connections: its Gloo operations in flight fail, here and at the peers."""
        with self._lock:
            self._shut()

    def shut_unless_idle(self) -> bool:
        """Ends the connections if a call is under way, or has failed. Returns whether they have been ended, now or before."""
        with self._lock:
            if self._ended is None and not self.ledger.is_idle:
                self._shut()
            return self._ended is not None

    def _shut(self) -> None:
        if self._ended is None:
            self._ended = sockets.shut(self._connections)
        self._connections = []

    @property
    def may_stay(self) -> bool:
        """Whether this group can stay open through a recovery, once no call is under way.

        Not the default group: some member of it is another process each time, or its connections have failed. Not one with NCCL:
        what is under way there is on the device, and an abort ends the communicator.
        """
        with self._lock:
            return self._may_stay()

    def _may_stay(self) -> bool:
        place = self.membership
        return (
            self._ended is None
            and self.group is not None
            and bool(place.global_ranks)
            and not place.has_nccl
            and not self.ledger.failed
            and len(self._connections) == place.size - 1  # fewer, where torch connects later, by way of a store that is gone
            and all(sockets.is_established(each) for each in self._connections)
        )

    def balance(self) -> Balance | None:
        """Returns what this process says of the group at a meeting. After the break of its generation; None: it cannot stay open.

        With an answer, only `shut` ends the connections any more.
        """
        with self._lock:
            if not self._may_stay() or self.group is None:
                return None
            group: Any = self.group  # torch's stubs lack half of ProcessGroup
            return self.ledger.balance(self.opened, int(group._get_sequence_number_for_group()))

    @property
    def is_shut(self) -> bool:
        return self._ended is not None

    @property
    def has_ended(self) -> bool:
        """Whether it was shut, and Gloo has closed its connections."""
        return self._ended is not None and self._ended.is_set()

    def release(self) -> None:
        """Frees the group: joins Gloo's threads with the interpreter's lock held, so only once no operation is in flight."""
        self.group = None
        self.communicator = None


def abort(groups: Iterable[InnerGroup]) -> None:
    """Makes every operation in flight fail. NCCL's part goes on in a thread."""
    groups = list(groups)
    for group in groups:
        group.shut()
    nccl.abort([group.communicator for group in groups if group.communicator is not None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A Gloo device of this process, for one group, and where it listens."""

    device: Any
    addresses: list[sockets.Address]


def listeners(host: str, count: int) -> list[Listener]:
    """Returns so many new listeners on this node's address, one for each group that is to be opened."""
    made = sockets.listening_each([lambda: dist.ProcessGroupGloo.create_device(hostname=host)] * count)
    return [Listener(device=device, addresses=addresses) for device, addresses in made]


def connect(
    membership: Membership,
    listener: Listener,
    peers: Sequence[sockets.Address],
    store: Store,
    *,
    timeout_s: float,
    deadline_s: float,
    opened: str = "",
) -> InnerGroup:
    """Connects with the other members, who listen at `peers` and do the same, and returns the open group.

    `store`: the group's own prefix. `timeout_s`: of its operations. `deadline_s` (monotonic): of connecting. `opened`: as in
    InnerGroup. RuntimeError (also DistError) when it fails. Blocks without the interpreter's lock.
    """
    rank, size = membership.rank, membership.size
    group = dist.ProcessGroup(store, rank, size)
    gloo_type: Any = dist.ProcessGroupGloo  # torch's stubs lack its private options
    options = gloo_type._Options()
    options._devices = [listener.device]
    options._timeout = timedelta(seconds=max(deadline_s - time.monotonic(), 0.1))
    options.global_ranks_in_group = list(membership.global_ranks)
    options.group_name = membership.name
    gloo = gloo_type(PrefixStore("gloo", store), rank, size, options)
    gloo._set_default_timeout(timedelta(seconds=timeout_s))
    connections = sockets.connections(listener.addresses, peers) if peers else []
    group._register_backend(CPU, dist.ProcessGroup.BackendType.GLOO, gloo)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    communicator = None
    if membership.has_nccl:
        communicator = nccl.connect(
            group,
            PrefixStore("nccl", store),
            membership.name,
            list(membership.global_ranks),
            timeout_s,
            membership.nccl_options,
        )
    elif "cuda" in membership.devices:
        group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.GLOO, gloo)
    group._set_group_name(GroupName(membership.name))
    return InnerGroup(group, connections, communicator, membership, opened)
