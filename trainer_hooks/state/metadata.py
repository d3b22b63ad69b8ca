"""The metadata of a state as bytes, and what is wrong with it.

    magic | length of the text (uint64, little endian) | text (JSON) | the tensors' bytes, one after the other

Packed with every state, so it is made for small things: torch.save takes ten times as long. The text is what encode
(storable.py) gives, in JSON; what JSON does not have is an object with the one key "", a list of the name of its kind and parts.
Of what the metadata consists of, only what has changed since the state before is written anew (MetaPacker).
"""

import json
import marshal
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.trainer_hooks.state.items import type_name, type_of

Meta = dict[str, Any]
GAPS = "gaps"  # "path: what it is" of all that the state consists of and a snapshot would not hold

_MAGIC: Final = b"DPMETA01"
_HEAD: Final = struct.Struct("<8sQ")
_TAG: Final = ""
_AS_THEY_ARE: Final = frozenset({str, bool, float, type(None)})  # and int, which has limits as text
_TEXT: Final = {str}
_to_text: Final = json.JSONEncoder(separators=(",", ":")).encode
_INT_MAX: Final = 1 << 256
_MARSHAL_WITHOUT_REFERENCES: Final = 2  # later versions write how often an object is referred to
_AS_NUMPY: Final = frozenset({torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool})


def pack_meta(meta: Meta) -> bytes:
    """Returns the metadata as bytes. SnapshotError names what the snapshot would not hold: nobody may rely on it."""
    return MetaPacker().pack(meta)


class MetaPacker:
    """Packs the metadata of one state after the other. For one thread alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], _Section] = {}

    def pack(self, meta: Meta) -> bytes:
        """Returns the same as pack_meta."""
        if meta[GAPS]:
            raise SnapshotError(f"not in the snapshot: {_named(meta[GAPS])}")
        found: dict[tuple[str, ...], _Section] = {}
        texts = []
        for name, value in meta.items():
            if _is_plain(value):  # as are those of generators, optimizers and extras: each of them changes by itself
                sections = [self._section((name, key), part) for key, part in value.items()]
                found.update(zip(((name, key) for key in value), sections, strict=True))
                texts.append(f"{_to_text(name)}:{{{','.join(section.text for section in sections)}}}")
            else:
                found[name,] = section = self._section((name,), value)
                texts.append(section.text)
        self._known = found
        data = f"{{{','.join(texts)}}}".encode()
        parts = (part for section in found.values() for part in section.parts)
        return b"".join((_HEAD.pack(_MAGIC, len(data)), data, *parts))

    def _section(self, name: tuple[str, ...], value: Any) -> "_Section":
        """Returns the section as it was packed for the state before, if it is the same: no value is changed after its capture."""
        known = self._known.get(name)
        if known is not None and known.value is value:
            return known
        content = _content(value) if known is None or known.content is not None else None  # tensors are mostly where they were
        if known is not None and content is not None and content == known.content:
            return known
        parts: list[bytes] = []
        return _Section(value, content, f"{_to_text(name[-1])}:{_to_text(_written(value, parts))}", parts)


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the metadata, and what it is packed to, behind its name. `content`: None where only the very same object is
    surely the same.
    """

    value: Any
    content: bytes | None
    text: str
    parts: list[bytes]


def _content(value: Any) -> bytes | None:
    """Returns bytes that are the same for the same value of the same types only; None: it has tensors."""
    try:
        return marshal.dumps(value, _MARSHAL_WITHOUT_REFERENCES)
    except ValueError:
        return None


def unpack_meta(data: bytes) -> Meta:
    """Returns what pack_meta was given. Runs no code from the data. SnapshotError: it is of another kind."""
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise SnapshotError("the metadata of this state was written by another version of deadpool")
    length = _HEAD.unpack_from(data)[1]
    begin = _HEAD.size + length
    meta: Meta = _Reader(data, begin).read(json.loads(data[_HEAD.size : begin]))
    return meta


def check_gaps(gaps: Sequence[str]) -> None:
    """ConfigError names what a snapshot would not hold."""
    if gaps:
        raise ConfigError(
            f"protect(): cannot be restored safely: {_named(gaps)}; "
            "with protect(strict=False) the job runs without it, and a recovery may not be bit for bit"
        )


def _written(value: Any, parts: list[bytes]) -> Any:
    """Returns the value as JSON has it; the bytes of tensors go to `parts`."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if -_INT_MAX < value < _INT_MAX else {_TAG: ["int", hex(value)]}
    if kind is list:
        return [_written(part, parts) for part in value]
    if kind is dict:
        if _is_plain(value) or not value:
            return {key: part if type(part) in _AS_THEY_ARE else _written(part, parts) for key, part in value.items()}
        return {_TAG: ["dict", *([_written(key, parts), _written(part, parts)] for key, part in value.items())]}
    if kind is tuple or kind is torch.Size:
        return {_TAG: [kind.__name__, *(_written(part, parts) for part in value)]}
    if isinstance(value, Tensor):
        return {_TAG: ["tensor", *_tensor_written(value, parts)]}
    if kind is torch.dtype:
        return {_TAG: ["dtype", type_name(value)]}
    if kind is torch.device:
        return {_TAG: ["device", str(value)]}
    raise AssertionError(f"storable.encode gives no {kind}")


def _is_plain(value: Any) -> bool:
    """Returns whether it is an object in JSON just as it is, and has any part."""
    return type(value) is dict and set(map(type, value)) == _TEXT and _TAG not in value


def _tensor_written(tensor: Tensor, parts: list[bytes]) -> list[Any]:
    """Returns type, shape, strides (None: row-major) and kind of device."""
    if tensor.dtype in _AS_NUMPY and tensor.device.type == "cpu" and not tensor.is_neg() and tensor.is_contiguous():
        parts.append(tensor.detach().numpy().tobytes())
        return [type_name(tensor.dtype), list(tensor.shape), None, "cpu"]
    plain = tensor.detach().resolve_conj().resolve_neg()
    parts.append(plain.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    stride = None if plain.is_contiguous() else list(plain.stride())
    return [type_name(tensor.dtype), list(tensor.shape), stride, tensor.device.type]


class _Reader:
    """Reads what `_written` gave; the tensors' bytes are at `position` of the data, in the order of the text."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    def read(self, value: Any) -> Any:
        if type(value) is list:
            return [self.read(part) for part in value]
        if type(value) is not dict:
            return value
        if _TAG not in value:
            return {key: self.read(part) for key, part in value.items()}
        kind, *parts = value[_TAG]
        match kind:
            case "int":
                return int(parts[0], 16)
            case "dict":
                return {self.read(key): self.read(part) for key, part in parts}
            case "tuple":
                return tuple(self.read(part) for part in parts)
            case "Size":
                return torch.Size(parts)
            case "tensor":
                return self._tensor(*parts)
            case "dtype":
                return type_of(parts[0])
            case "device":
                return torch.device(parts[0])
        raise SnapshotError(f"the metadata of this state has a {kind!r}")

    def _tensor(self, dtype_name: str, shape: list[int], stride: list[int] | None, device: str) -> Tensor:
        """Returns the tensor in memory of its own: of this process's own device, where it was on one."""
        dtype = type_of(dtype_name)
        begin, size = self._position, prod(shape) * dtype.itemsize
        self._position = end = begin + size
        raw = torch.frombuffer(bytearray(self._data[begin:end]), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        tensor = raw.view(dtype).view(shape)
        if stride is not None:
            tensor = torch.empty_strided(shape, stride, dtype=dtype).copy_(tensor)
        return tensor.cuda() if device == "cuda" else tensor


def _named(gaps: Sequence[str]) -> str:
    return f"{gaps[0]} (and {len(gaps) - 1} more)" if gaps[1:] else gaps[0]
