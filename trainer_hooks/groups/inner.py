"""An open group: the torch process group of one generation inside one of ours, with what it takes to abort it.

It is a full dist.ProcessGroup with Gloo for CPU tensors and, where there is CUDA, NCCL for CUDA tensors (nccl.py).
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups import nccl, sockets
from deadpool.trainer_hooks.torch_internals import GroupName, PrefixStore, Store

_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.05
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a group is, in every generation alike. `global_ranks` is empty for the default group.

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


class InnerGroup:
    """Made by `open_group`. `shut` may come from any thread, at any time, more than once."""

    def __init__(
        self, group: dist.ProcessGroup, connections: list[socket.socket], communicator: nccl.Communicator | None
    ) -> None:
        self.group: dist.ProcessGroup | None = group
        self._connections = connections
        self.communicator = communicator
        self._lock = threading.Lock()

    def shut(self) -> None:
        """Ends the group's connections: its Gloo operations in flight fail, here and at the peers."""
        with self._lock:
            connections, self._connections = self._connections, []
        sockets.shut(connections)

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


def open_group(
    membership: Membership, store: Store, host: str, timeout_s: float, deadline_s: float, given_up: Callable[[], bool]
) -> InnerGroup:
    """Connects with all members over `store` (the group's own prefix) and returns the open group.

    `timeout_s`: of its operations. `deadline_s` (monotonic) and `given_up` end the wait for members that do not come.
    RuntimeError (also DistError) or UnavailableError when it fails. Blocks without the interpreter's lock.
    """
    rank, size = membership.rank, membership.size
    group = dist.ProcessGroup(store, rank, size)
    device, own = sockets.listening_since(lambda: dist.ProcessGroupGloo.create_device(hostname=host))
    peers: list[sockets.Address] = []
    if size > 1:
        store.set(f"listening/{rank}", json.dumps(own))
        others = [f"listening/{other}" for other in range(size) if other != rank]
        _wait_for(store, others, deadline_s, given_up)
        peers = [(peer, port) for listed in store.multi_get(others) for peer, port in json.loads(listed)]
    gloo_type: Any = dist.ProcessGroupGloo  # torch's stubs lack its private options
    options = gloo_type._Options()
    options._devices = [device]
    options._timeout = timedelta(seconds=max(deadline_s - time.monotonic(), 0.1))
    options.global_ranks_in_group = list(membership.global_ranks)
    options.group_name = membership.name
    gloo = gloo_type(PrefixStore("gloo", store), rank, size, options)
    gloo._set_default_timeout(timedelta(seconds=timeout_s))
    connections = sockets.connections(own, peers) if peers else []
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
    return InnerGroup(group, connections, communicator)


def _wait_for(store: Store, keys: list[str], deadline_s: float, given_up: Callable[[], bool]) -> None:
    """Asks again and again: a wait inside Gloo or the store could not be given up, and a thread would stay behind."""
    pause_s = _PAUSE_S
    while not store.check(keys):
        if given_up() or time.monotonic() > deadline_s:
            raise UnavailableError("not all members came")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
