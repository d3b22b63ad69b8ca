"""Values that can be written down and read back without running code: what becomes of everything that is not an item.

`encode` returns a copy in types that metadata.py writes as bytes. What is code (functions, classes) is no state and is
left out; what cannot be stored is left out too, and named. `decode` puts the live value in such places.
"""

import sys
import types
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from io import BytesIO
from typing import Any, Final

import numpy
import torch
from torch import Tensor

from deadpool.host.errors import SnapshotError

_TAG: Final = "__deadpool__"
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)
_PLAIN = (type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device)
_TEXTS: Final[dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]]] = {  # exact types that a text says wholly
    "Decimal": (str, Decimal),
    "Fraction": (str, Fraction),
    "date": (date.isoformat, date.fromisoformat),
    "datetime": (datetime.isoformat, datetime.fromisoformat),
    "range": (lambda each: f"{each.start} {each.stop} {each.step}", lambda text: range(*map(int, text.split()))),
}
_BY_TEXT = {Decimal, Fraction, date, datetime, range}
_FACTORIES: Final = {kind.__name__: kind for kind in (dict, list, set, int, float, str, tuple)}
_CODED: Final = "code"  # a factory that is a function: the live value has it

OnTensor = Callable[[str, Tensor], Any]


def encode(value: Any, path: str, left_out: list[str], *, on_tensor: OnTensor | None = None) -> Any:
    """Returns a storable copy of the value. `left_out` gets "path: what it is" for each part of it that cannot be stored.

    `on_tensor(path, tensor)`: what to put in a tensor's place; without it, a copy of the tensor.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return on_tensor(path, value) if on_tensor is not None else _copied(value, path, left_out)

    def inner(part: Any, name: object) -> Any:
        return part if type(part) in _PLAIN else encode(part, f"{path}/{name}", left_out, on_tensor=on_tensor)

    if kind in (list, tuple):
        return kind(inner(part, index) for index, part in enumerate(value))
    if kind is dict and _TAG not in value and all(type(key) in (str, int) for key in value):
        return {key: inner(part, key) for key, part in value.items()}
    if kind in (dict, OrderedDict, defaultdict, Counter):
        rows = [(inner(key, "key"), inner(part, key)) for key, part in value.items()]
        return {_TAG: kind.__name__, "rows": rows, "factory": _factory_name(getattr(value, "default_factory", None))}
    if kind in (set, frozenset, deque):
        parts = [inner(part, index) for index, part in enumerate(value)]
        if kind is not deque:
            _warn_of_order(value, path)
        return {_TAG: kind.__name__, "parts": parts, "length": getattr(value, "maxlen", None)}
    if kind in (bytes, bytearray):
        return {_TAG: kind.__name__, "data": _bytes(bytes(value))}
    if kind in _BY_TEXT and getattr(value, "tzinfo", None) is None and not getattr(value, "fold", 0):
        return {_TAG: kind.__name__, "text": _TEXTS[kind.__name__][0](value)}
    if kind is complex:
        return {_TAG: "complex", "parts": [value.real, value.imag]}
    if isinstance(value, BytesIO):
        return {_TAG: "BytesIO", "data": _bytes(value.getvalue())}
    if isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "?bhilqpBHILQPefdgFDGiufcbmMSU":
        return {
            _TAG: "array" if isinstance(value, numpy.ndarray) else "scalar",
            "data": _bytes(value.tobytes()),
            "dtype": value.dtype.str,
            "shape": list(value.shape),
        }
    if not isinstance(value, _CODE):
        left_out.append(f"{path}: {'an object' if kind.__module__ == 'builtins' else 'a'} {kind.__module__}.{kind.__qualname__}")
    return {_TAG: "live"}


def decode(value: Any, live: Any = None, *, item: Callable[[str], Tensor] | None = None) -> Any:
    """Returns what `encode` was given. `live`: what is in its place now, for what was left out; `item(path)`: for on_tensor's."""
    if isinstance(value, Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        lives = live if isinstance(live, (list, tuple)) and len(live) == len(value) else [None] * len(value)
        return type(value)(decode(part, before, item=item) for part, before in zip(value, lives, strict=True))
    if type(value) is not dict:
        return value
    if _TAG in value:
        return _untagged(value, live, item)
    return {key: decode(part, now, item=item) for key, part in value.items() if (now := _at(live, key, part)) is not _MISSING}


def tensor_at(path: str) -> dict[str, str]:
    """Returns what stands for a tensor that is an item."""
    return {_TAG: "item", "path": path}


def item_paths(value: Any) -> set[str]:
    """Returns the paths of all items that the encoded value refers to."""
    if isinstance(value, dict):
        if value.get(_TAG) == "item":
            return {value["path"]}
        return {path for part in value.values() for path in item_paths(part)}
    return {path for part in value for path in item_paths(part)} if isinstance(value, (list, tuple)) else set()


_MISSING: Final = object()


def _at(live: Any, key: Any, part: Any) -> Any:
    """Returns what is now in the key's place; _MISSING: nothing, and the saved part was left out."""
    if isinstance(live, Mapping) and key in live:
        return live[key]
    return _MISSING if isinstance(part, dict) and part.get(_TAG) == "live" else None


def _untagged(value: dict[str, Any], live: Any, item: Callable[[str], Tensor] | None) -> Any:
    match value[_TAG]:
        case "live":
            return live
        case "item":
            assert item is not None
            return item(value["path"])
        case "array" | "scalar":
            array = numpy.frombuffer(_raw(value["data"]), dtype=numpy.dtype(value["dtype"])).reshape(value["shape"]).copy()
            return array if value[_TAG] == "array" else array[()]
        case "bytes":
            return _raw(value["data"])
        case "bytearray":
            return bytearray(_raw(value["data"]))
        case "BytesIO":
            return BytesIO(_raw(value["data"]))
        case kind if kind in _TEXTS:
            return _TEXTS[kind][1](value["text"])
        case "complex":
            return complex(*value["parts"])
        case "set" | "frozenset" | "deque" as kind:
            parts = [decode(part, item=item) for part in value["parts"]]
            return deque(parts, value["length"]) if kind == "deque" else {"set": set, "frozenset": frozenset}[kind](parts)
        case kind:
            keys = [decode(key) for key, _ in value["rows"]]
            rows = [
                (key, decode(part, now, item=item))
                for key, (_, part) in zip(keys, value["rows"], strict=True)
                if (now := _at(live, key, part)) is not _MISSING
            ]
            if kind == "defaultdict":
                return defaultdict(_factory(value["factory"], live), rows)
            made: dict[Any, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[kind]()
            made.update(dict(rows))  # a Counter that is given rows would count them
            return made


def _factory_name(factory: Any) -> str:
    known = (name for name, kind in _FACTORIES.items() if kind is factory)
    return "" if factory is None else next(known, _CODED)


def _factory(name: str, live: Any) -> Callable[[], Any] | None:
    """Returns a defaultdict's factory. `live`: the value in its place, which has it where it is code."""
    if name == _CODED:
        return getattr(live, "default_factory", None) or _lost_factory
    return _FACTORIES.get(name)


def _lost_factory() -> Any:
    raise SnapshotError(
        "a defaultdict that came back in a recovery has lost its factory, which is a function of the script: there was none in "
        "its place when the process began; make it before protect(), or give it a factory that is a type, such as list or int"
    )


def _warn_of_order(value: set[Any] | frozenset[Any], path: str) -> None:
    """Says so where one that is made of the same elements is gone through in another order, now or after some more of them."""
    again = type(value)([*value])
    if sys.getsizeof(again) != sys.getsizeof(value) or [*again] != [*value]:
        warnings.warn(
            f"{path}: a set comes back with the same elements in another order, as elements have been removed from it or share "
            "a place; if a step depends on the order (a loop over it, pop()), keep a dict or a sorted list",
            RuntimeWarning,
            stacklevel=2,
        )


def _copied(value: Tensor, path: str, left_out: list[str]) -> Any:
    if type(value) in (Tensor, torch.nn.Parameter, torch.nn.Buffer) and value.layout is torch.strided and not value.is_meta:
        return value.detach().clone()
    left_out.append(f"{path}: a tensor of type {type(value).__name__}, {str(value.layout).removeprefix('torch.')}")
    return {_TAG: "live"}


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _raw(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()
