"""What a state says beside tensors and values: which modules, groups and ties there are, what is trained.

It changes rarely, so it is written down as bytes once and taken along with every state.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a tensor is made that is not as expected (fit.py). `shape`, `placements`: of the whole, when it is a shard."""

    device: str = ""
    stride: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    placements: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """All by path, sorted. `frozen`: parameters without requires_grad; `empty`: places of None; `transient`: buffers that are not
    in the modules' state_dict; `ties`: path -> the path of the item that lies there as well; `groups`: for each optimizer the
    names of the parameters in each group; `reshaped`: parameters and buffers that have come, or have another shape or type, since
    the state was registered; `kinds`: of tensors.
    """

    modules: tuple[str, ...]
    frozen: tuple[str, ...]
    empty: tuple[str, ...]
    transient: tuple[str, ...]
    ties: Mapping[str, str]
    groups: Mapping[str, tuple[tuple[str, ...], ...]]
    reshaped: tuple[str, ...]
    kinds: Mapping[str, Kind]

    def to_tensor(self) -> Tensor:
        """Returns it as uint8 bytes."""
        packed = zlib.compress(json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode())
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, packed: Tensor) -> Self:
        found = json.loads(zlib.decompress(packed.cpu().numpy().tobytes()))
        return cls(
            modules=tuple(found["modules"]),
            frozen=tuple(found["frozen"]),
            empty=tuple(found["empty"]),
            transient=tuple(found["transient"]),
            ties=found["ties"],
            groups={name: tuple(map(tuple, groups)) for name, groups in found["groups"].items()},
            reshaped=tuple(found["reshaped"]),
            kinds={path: _kind(values) for path, values in found["kinds"].items()},
        )


def _kind(values: dict[str, object]) -> Kind:
    return Kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})  # type: ignore[arg-type]
