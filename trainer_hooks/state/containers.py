"""Plain values of a script that are registered as `extra`: containers, arrays, tensors, objects of dataclasses.

A restore changes them where they are, and what is in them as well where it is of the same type: the script names that, too.
"""

from collections import deque
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import numpy
from torch import Tensor


class OfDataclass(Protocol):
    """An object of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Plain = dict[Any, Any] | list[Any] | set[Any] | deque[Any] | numpy.ndarray[Any, Any] | Tensor | SimpleNamespace | OfDataclass
_IN_PLACE = (dict, list, set, deque, numpy.ndarray, Tensor)


def is_container(value: Any) -> bool:
    """Returns whether the value can be registered as it is."""
    return isinstance(value, (*_IN_PLACE, SimpleNamespace)) or (is_dataclass(value) and not isinstance(value, type))


class Container:
    """A container with a state_dict."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def state_dict(self) -> dict[str, Any]:
        return {"value": self._kept if isinstance(self._kept, _IN_PLACE) else attributes(self._kept)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        refilled = refill(self._kept, state_dict["value"])
        assert refilled is self._kept, f"what was a {type(self._kept).__name__} is none any more"


def attributes(owner: Any) -> dict[str, Any]:
    """Returns the attributes of an object, those in slots as well."""
    declared = [vars(kind).get("__slots__", ()) for kind in type(owner).__mro__]
    slots = [name for names in declared for name in ((names,) if isinstance(names, str) else names)]
    kept = {name: getattr(owner, name) for name in slots if name not in ("__dict__", "__weakref__") and hasattr(owner, name)}
    return kept | getattr(owner, "__dict__", {})


def refill(live: Any, saved: Any) -> Any:
    """Returns the saved value: in the live object where that can be made to hold it, else the saved one itself."""
    match live:
        case dict() | list() | set() | deque() if type(live) is not type(saved):
            return saved
        case Tensor() if isinstance(saved, Tensor):
            if live.shape == saved.shape and live.dtype == saved.dtype:
                live.detach().copy_(saved)
            else:
                live.data = saved
        case numpy.ndarray() if isinstance(saved, numpy.ndarray):
            if live.shape != saved.shape:
                live.resize(saved.shape, refcheck=False)
            live[...] = saved
        case dict():
            kept = {key: refill(live.get(key), value) for key, value in saved.items()}
            live.clear()
            live.update(kept)
        case list():
            live[:] = [refill(live[index] if index < len(live) else None, value) for index, value in enumerate(saved)]
        case deque():
            kept_parts = [refill(live[index] if index < len(live) else None, value) for index, value in enumerate(saved)]
            live.clear()
            live.extend(kept_parts)
        case set():
            live.clear()
            live.update([*saved])  # one by one, which gives the order that was looked at when it was stored
        case _ if isinstance(saved, dict) and is_container(live):
            now = attributes(live)
            for name in now.keys() - saved.keys():
                object.__delattr__(live, name)
            for name, value in saved.items():
                object.__setattr__(live, name, refill(now.get(name), value))
        case _:
            return saved
    return live
