"""Four functions of torch.distributed that need help with our groups. Installed by init_default, taken away by close.

* `_tensor_to_object`, inside every object collective: what arrives while collectives are muted may be no pickle. It gives None.
* `batch_isend_irecv` coalesces only for groups whose type is exactly ProcessGroup; on NCCL, sends and receives one by one can
  deadlock when two stages exchange both ways.
* `monitored_barrier` refuses any backend that is not called gloo.
* `dist.get_backend` is what frameworks decide by (how to take a mean, whether a barrier names devices): it says what is within.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from deadpool.trainer_hooks.groups.group import Group

_originals: dict[str, Callable[..., Any]] = {}


def install(is_muted: Callable[[], bool]) -> None:
    """Puts the four in place of torch's; again for another registry. `is_muted`: whether collectives are."""
    for name in ("_tensor_to_object", "batch_isend_irecv", "monitored_barrier"):
        _originals.setdefault(name, getattr(distributed_c10d, name))
    dist.get_backend = _get_backend  # torch itself asks distributed_c10d, and makes groups of what that answers
    _set("_tensor_to_object", lambda *given: _tensor_to_object(is_muted, given))
    _set("batch_isend_irecv", _batch_isend_irecv)
    _set("monitored_barrier", _monitored_barrier)


def remove() -> None:
    for name, original in _originals.items():
        _set(name, original)
    dist.get_backend = distributed_c10d.get_backend


def _set(name: str, function: Callable[..., Any]) -> None:
    setattr(distributed_c10d, name, function)
    if hasattr(dist, name):
        setattr(dist, name, function)


def _get_backend(group: dist.ProcessGroup | None = None) -> Any:
    own = group or distributed_c10d._get_default_group()
    if not isinstance(own, Group):
        return distributed_c10d.get_backend(group)
    return dist.Backend.NCCL if own.membership.has_nccl else dist.Backend.GLOO


def _tensor_to_object(is_muted: Callable[[], bool], given: tuple[Any, ...]) -> Any:
    """`given`: tensor, size, group; later releases of torch add to it."""
    try:
        return _originals["_tensor_to_object"](*given)
    except Exception:  # whatever unpickling garbage may raise
        if is_muted():
            return None
        raise


def _batch_isend_irecv(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
    group = p2p_op_list[0].group or distributed_c10d._get_default_group()
    device = p2p_op_list[0].tensor.device
    if not isinstance(group, Group) or not group._get_backend(device).supports_coalescing:
        works: list[dist.Work] = _originals["batch_isend_irecv"](p2p_op_list)
        return works
    distributed_c10d._check_p2p_op_list(p2p_op_list)
    with distributed_c10d._coalescing_manager(group, device, async_ops=True) as manager:
        for op in p2p_op_list:
            peer = {"group_dst" if op.op is dist.isend else "group_src": op.group_peer}
            op.op(op.tensor, group=op.group, tag=op.tag, **peer)
    coalesced: list[dist.Work] = manager.works
    return coalesced


def _monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    own = group or distributed_c10d._get_default_group()
    if isinstance(own, Group):
        own.monitored_barrier(timeout, wait_all_ranks)
    else:
        _originals["monitored_barrier"](group, timeout, wait_all_ranks)
