"""Digests of a rank's state and of what a step returned: every leaf of nested values under its path."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from deadpool.proto.vault.layout import checksum
from deadpool.trainer_hooks.drill.tables import Table
from deadpool.trainer_hooks.state.items import type_name
from deadpool.trainer_hooks.state.training_state import TrainingState

_SHOWN_CHARACTERS = 64  # a longer text is shown by its checksum
_PLAIN_MAX = 32  # numbers in a row; longer rows become one digest
_UNKNOWN = "an object of {}"
_OURS = "extra.deadpool.messages"  # for rehearsals (groups/messages.py); the stages of a pipeline send some more after a restore


def table_of(state: TrainingState, *, value: Any = None, loose: Mapping[str, str] | None = None) -> Table:
    """Returns the digests of the state as the process holds it now."""
    return Table(
        items={held.key: digest(held.tensor) for held in state.held()},
        meta={path: each for path, each in leaves(state.capture_meta()) if not path.startswith(_OURS)},
        loose=dict(loose or {}),
        value=dict(leaves(value, "returned")),
    )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields (path, digest) for everything in nested dicts, lists, tuples and dataclasses."""
    match value:
        case Mapping() if value:
            for key, each in value.items():
                yield from leaves(each, f"{path}.{key}" if path else str(key))
        case list() | tuple() if value and not _is_row(value):
            for index, each in enumerate(value):
                yield from leaves(each, f"{path}[{index}]")
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                yield from leaves(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)
        case _:
            yield path, digest(value)


def digest(value: Any) -> str:
    """Returns a text that is equal for two values exactly if they are the same, to the bit; of an unknown object, its class."""
    match value:
        case Tensor():
            return _of_tensor(value)
        case float():
            return f"{value!r}" if value == value else f"nan {value.hex()}"
        case None | bool() | int() | complex() | str() | bytes():
            return _shortened(repr(value))
        case list() | tuple() | Mapping():
            return _shortened(repr(value))
        case _ if type(value).__module__ == "numpy" and getattr(value, "size", 0) > _SHOWN_CHARACTERS and value.dtype.kind != "O":
            return f"{value.dtype} {'x'.join(map(str, value.shape))} {checksum(value.tobytes()):016x}"
        case _ if type(value).__module__ == "numpy":
            return _shortened(f"{getattr(value, 'dtype', type(value))} {value.tolist()!r}")
        case _:
            return _UNKNOWN.format(f"{type(value).__module__}.{type(value).__qualname__}")


def _of_tensor(tensor: Tensor) -> str:
    local = (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach()
    if local.is_meta:
        return f"{type_name(local.dtype)} {tuple(local.shape)} without memory"
    if local.is_quantized:
        local = local.int_repr()
    local = local.to_dense() if local.layout is not torch.strided else local
    if local.numel() == 1 and not local.is_complex():
        return f"{type_name(local.dtype)} {local.item()!r}"
    raw = local.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    shape = "x".join(map(str, local.shape))
    return f"{type_name(local.dtype)} {shape} {checksum(raw.data):016x}"


def _is_row(value: Sequence[Any]) -> bool:
    """Returns whether a sequence is shown as one value: many numbers, as of a random generator."""
    return len(value) > _PLAIN_MAX and all(isinstance(each, int | float) for each in value)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{len(text)} characters {checksum(text.encode()):016x}"
