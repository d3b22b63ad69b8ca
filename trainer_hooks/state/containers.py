"""Plain values of a script that are registered as `extra`: containers, arrays, tensors, objects of dataclasses.

A restore changes them where they are, and what is in them as well where it is of the same type: the script names that, too.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
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
        value = self._kept if isinstance(self._kept, _IN_PLACE) else attributes(self._kept)
        return {"value": value, "same": _same(value)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["value"]
        refilled = _Refill(saved, state_dict.get("same", ())).refill(self._kept, saved)
        assert refilled is self._kept, f"what was a {type(self._kept).__name__} is none any more"


def attributes(owner: Any) -> dict[str, Any]:
    """Returns the attributes of an object, those in slots as well."""
    declared = [vars(kind).get("__slots__", ()) for kind in type(owner).__mro__]
    slots = [name for names in declared for name in ((names,) if isinstance(names, str) else names)]
    kept = {name: getattr(owner, name) for name in slots if name not in ("__dict__", "__weakref__") and hasattr(owner, name)}
    return kept | getattr(owner, "__dict__", {})


def _parts(value: Any) -> Iterator[Any]:
    """Yields what can be changed in place in a value: itself, and what is in it, as often as it is there."""
    if isinstance(value, _IN_PLACE):
        yield value
    if isinstance(value, dict | list | tuple | deque):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part)


def _same(value: Any) -> list[tuple[int, int]]:
    """Returns the places, as numbers in the order of _parts, that hold what an earlier place holds: (earlier, later)."""
    first: dict[int, int] = {}
    places = ((first.setdefault(id(part), place), place) for place, part in enumerate(_parts(value)))
    return [(earlier, place) for earlier, place in places if earlier != place]


class _Refill:
    """Puts a saved value into the live objects, each of which takes one saved value: what was one object is one again.

    `same`: the places of the saved value that were one object (_same).
    """

    def __init__(self, saved: Any, same: Iterable[tuple[int, int]]) -> None:
        parts = list(_parts(saved)) if same else []
        self._first = {id(parts[later]): parts[earlier] for earlier, later in same}
        self._made: dict[int, Any] = {}
        self._taken: dict[int, Any] = {}

    def refill(self, live: Any, saved: Any) -> Any:
        """Returns the saved value: in the live object where that can be made to hold it, else the saved one itself."""
        saved = self._first.get(id(saved), saved)
        if id(saved) in self._made:
            return self._made[id(saved)]
        if id(live) in self._taken or not _can_hold(live, saved):
            live = saved
        if isinstance(live, tuple):
            return type(live)(self.refill(part, part) for part in live) if type(live) is tuple else live
        if isinstance(live, _IN_PLACE) or live is not saved:
            self._taken[id(live)] = self._made[id(saved)] = live
            self._fill(live, saved)
        return live

    def _fill(self, live: Any, saved: Any) -> None:
        match live:
            case Tensor():
                _fill_tensor(live, saved)
            case numpy.ndarray():
                if live.shape != saved.shape:
                    live.resize(saved.shape, refcheck=False)
                live[...] = saved
            case dict():
                kept = {key: self.refill(live.get(key), value) for key, value in saved.items()}
                live.clear()
                live.update(kept)
                if isinstance(live, defaultdict):
                    live.default_factory = saved.default_factory  # None where a script has made an end of new keys
            case list() | deque():
                row = [self.refill(live[index] if index < len(live) else None, value) for index, value in enumerate(saved)]
                live.clear()
                live.extend(row)
            case set():
                elements = [*saved]
                live.clear()
                live.update(elements)  # one by one, which gives the order that was looked at when it was stored
            case _:
                now = attributes(live)
                for name in now.keys() - saved.keys():
                    object.__delattr__(live, name)
                for name, value in saved.items():
                    object.__setattr__(live, name, self.refill(now.get(name), value))


def _can_hold(live: Any, saved: Any) -> bool:
    if isinstance(live, numpy.ndarray):
        return isinstance(saved, numpy.ndarray) and live.dtype == saved.dtype
    if isinstance(live, Tensor):
        return isinstance(saved, Tensor)
    if isinstance(live, _IN_PLACE):
        return type(live) is type(saved) and getattr(live, "maxlen", None) == getattr(saved, "maxlen", None)
    return isinstance(saved, dict) and is_container(live)


def _fill_tensor(live: Tensor, saved: Tensor) -> None:
    if live is saved:
        return
    if live.shape == saved.shape and live.dtype == saved.dtype:
        live.detach().copy_(saved)
    else:
        live.data = saved
