"""The small messages by which ranks agree on what to do: kept, so that a joiner's rehearsal sees what its predecessor saw.

A muted collective answers with the caller's own values. That keeps a step going where data is concerned. Code that reads what it
receives (an object, a vote, a number of items) takes another way on it, or fails: the stages of a pipeline tell each other the
shapes of what they pass on. So the first such messages are kept: whole numbers, truth values and bytes, a few kilobytes at most.
They belong to the training state and travel in a snapshot's metadata.
"""

import base64
import json
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from deadpool.trainer_hooks.groups.muted import tensors_in

BYTES_MAX = 16 << 10  # of one message
TOTAL_BYTES_MAX = 64 << 10
KEPT_MAX = 64  # from one source, in one group: a rehearsal is a few steps
_RECEIVES = ("recv", "recv_anysource")
_FROM_ROOT = ("broadcast", "scatter")
_LAYS_OUT_BUCKETS = ("_pre_forward", "ddp_forward_begins")  # of DDP, which may do so elsewhere in a rehearsal (ddp_reducers.py)
_SAYS_NOTHING = frozenset(("send", "barrier", "monitored_barrier"))

Message = list[bytes]  # the content of each tensor that was filled


def small_message(operation: str, rank: int, args: tuple[Any, ...]) -> tuple[str, list[torch.Tensor]] | None:
    """Returns who says it in which way, and the tensors that it fills; None when this is not one of the messages kept here.

    `rank`: in the group; of the root of a broadcast, which hears nothing new. Called on every call: data leaves it early.
    """
    first = args[0] if args else None
    while isinstance(first, (list, tuple)):
        first = first[0] if first else None
    if not isinstance(first, torch.Tensor) or first.is_floating_point() or operation in _SAYS_NOTHING:
        return None
    if operation == "broadcast" and sys._getframe(2).f_code.co_name in _LAYS_OUT_BUCKETS:
        return None
    tensors = tensors_in(args[0])
    if sum(each.numel() * each.element_size() for each in tensors) > BYTES_MAX or any(each.is_complex() for each in tensors):
        return None
    source = ""
    if operation in _RECEIVES:
        source = str(args[1]) if operation == "recv" else ""
    elif operation in _FROM_ROOT:
        root = next((found for each in args[1:] if (found := _root(each)) is not None), None)
        if root == rank:
            return None
        source = str(root)
    return f"{operation}/{source}", tensors


def _root(argument: Any) -> int | None:
    """Returns the root that an argument of a collective names: its options, or the plain number."""
    root = getattr(argument, "rootRank", argument)
    return root if isinstance(root, int) else None


class Messages:
    """Of one process. A key names who says it to whom: the group, as all processes of this rank number it, and the way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, list[Message]] = {}
        self._count: Counter[str] = Counter()  # of all that were said up to the state that the process holds
        self._total_bytes = 0
        self._received: Counter[str] = Counter()  # by this very process
        self._answered: Counter[str] = Counter()
        self._packed: str | None = None

    def keep(self, key: str, tensors: Sequence[torch.Tensor]) -> None:
        """These tensors were filled by a message that has come."""
        with self._lock:
            self._received[key] += 1
            self._count[key] += 1
            kept = self._kept.setdefault(key, [])
            size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            all_before_it = len(kept) + 1 == self._count[key]
            if all_before_it and len(kept) < KEPT_MAX and self._total_bytes + size_bytes <= TOTAL_BYTES_MAX:
                kept.append([_content(tensor) for tensor in tensors])
                self._total_bytes += size_bytes
                self._packed = None

    def answer(self, key: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Fills the tensors as the next message that was kept and fits, or, when a rehearsal asks for more than have come, as the
        last one that does: stages that vote say the same again. Returns False when there is none.
        """
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        with self._lock:
            kept, begin = self._kept.get(key, []), self._received[key] + self._answered[key]
            fitting = [index for index, message in enumerate(kept) if list(map(len, message)) == sizes]
            if not fitting:
                return False
            index = next((each for each in fitting if each >= begin), fitting[-1])
            self._answered[key] += max(0, index + 1 - begin)
            for tensor, content in zip(tensors, kept[index], strict=True):
                _fill(tensor, content)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns text and numbers; copying it costs little."""
        with self._lock:
            if self._packed is None:
                kept = {
                    key: [[base64.b64encode(content).decode() for content in message] for message in messages]
                    for key, messages in self._kept.items()
                }
                self._packed = json.dumps(kept)
            return {"messages": self._packed, "count": dict(self._count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept = json.loads(state["messages"])
        with self._lock:
            self._kept = {
                key: [[base64.b64decode(content) for content in message] for message in messages]
                for key, messages in kept.items()
            }
            self._count = Counter(state["count"])
            self._total_bytes = sum(len(each) for messages in self._kept.values() for message in messages for each in message)
            self._packed = state["messages"]


def _content(tensor: torch.Tensor) -> bytes:
    content: bytes = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return content


def _fill(tensor: torch.Tensor, content: bytes) -> None:
    if content:
        tensor.data.copy_(torch.frombuffer(bytearray(content), dtype=tensor.dtype).view(tensor.shape))
