"""What lies beside the state and may change what a step does: attributes, and whatever the step reaches by its names.

It is no part of a snapshot. Whether it matters nobody can tell from here; where a step that was done again came out otherwise,
and one of these was not what it had been before the step, it is the likely cause.
"""

import contextvars
import functools
import os
import random
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from inspect import getgeneratorlocals, getgeneratorstate, getmro
from itertools import chain, count, islice
from operator import length_hint
from secrets import token_hex
from types import (
    BuiltinMethodType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from deadpool.trainer_hooks.drill.digests import digest
from deadpool.trainer_hooks.drill.plain_values import generator_state, is_clock_reading, is_plain, plain_text
from deadpool.trainer_hooks.drill.reached import OURS, Reached, global_hooks, hooks_in, is_of_script, never_alike
from deadpool.trainer_hooks.drill.verdict import ATTRIBUTE, CALL, KEEPS, UNPROTECTED, UNSEEN

_DEPTH = 8
_VALUES_MAX = 20_000
_ROW_MAX = 10_000  # of longer containers only numbers and texts are looked at
_LEFT_OUT = (
    "threading",
    "logging",
    "asyncio",
    "concurrent",
    "multiprocessing",
    "subprocess",
    "socket",
    "unittest",
    "_thread",
)  # no values
_NOTHING_IN = (
    "builtins",
    "operator",
    "functools",
    "re",
    "weakref",
    "torch",
    "numpy",
)  # no state
_LAUNCHED = ("DEADPOOL_", "MASTER_", "TORCHELASTIC_", "GROUP_", "ROLE_", "LOCAL_", "RANK", "WORLD_SIZE", "NODE_")
_OF_MODULES = frozenset(vars(nn.Module()))
_OF_OPTIMIZERS = frozenset((*vars(torch.optim.SGD([torch.zeros(1)], lr=0.1)), "step", "optim"))
_OF_LOADERS = ("dataset", "sampler", "batch_sampler", "collate_fn")
_QUICK_MAX = 4_000_000
_QUICK = (type(None), bool, int, float, str)  # written down by the million
_OF_NO_CLASS = ("types", "argparse")  # their namespaces are of the script, whatever the names in them
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


def loose_of(
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    step: Callable[..., Any] | None,
    *,
    frames: Iterable[FrameType] = (),
    loader: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Returns a readable name -> the digest now, for whatever could be found.

    `step`: the script's function, `frames`: those that run the loop, `loader`: that of the loop. `extra`: of the state; what its
    state_dict forgets is found here.
    """
    looked = _Looked(known=(*models.values(), *optimizers.values()))
    for name, model in models.items():
        for path, module in model.named_modules():
            looked.attributes(f"{ATTRIBUTE}{{}} of module {name}{f'.{path}' if path else ''}", module)
    for name, optimizer in optimizers.items():
        looked.attributes(f"{ATTRIBUTE}{{}} of {name}", optimizer)
    for each in (step, *hooks_in((models, optimizers)), *global_hooks()):
        looked.reached.add(each)
    if loader is not None:
        looked.named("loader", loader)
    for frame in frames:
        for name, value in looked.reached.in_frame(frame):
            looked.named(name, value)
    for name, value in looked.reached.in_functions():
        looked.named(name, value)
    for name, value in (extra or {}).items():
        looked.named(f"extra[{name!r}]", value)
    calls = {f"{CALL}{name}": f"answer {token_hex(8)}" for name in looked.reached.calls}
    return looked.found | calls


class _Looked:
    """A walk through values. `known`: what is of the state already."""

    def __init__(self, known: Iterable[Any]) -> None:
        self.reached = Reached()
        self.found: dict[str, str] = {}
        self._seen: dict[int, Any] = {}
        self._owners: dict[int, Any] = {}
        for each in known:
            for owner in each.modules() if isinstance(each, nn.Module) else (each,):
                self._seen[id(owner)] = owner
                self.reached.add_class(type(owner))
            if isinstance(each, nn.Module):
                self._seen |= {id(tensor): tensor for tensor in (*each.parameters(), *each.buffers())}

    def attributes(self, where: str, owner: Any) -> None:
        """Takes down what a model's module, or an optimizer, keeps for itself. `where`: with {} for the attribute's name."""
        for name, value in _attributes(owner):
            self._look(where.format, name, value, _DEPTH)
        if isinstance(owner, nn.Module):
            for name, tensor in {**owner._parameters, **owner._buffers}.items():
                self._kept_on(where.format, name, tensor, _DEPTH)
        self._classes(type(owner), _DEPTH)

    def named(self, name: str, value: Any) -> None:
        self._look("{}".format, name, value, _DEPTH)

    def _look(self, label: Callable[[str], str], path: str, value: Any, depth: int) -> None:
        if len(self.found) >= _VALUES_MAX or depth < 0:
            return
        try:
            self._take(label, path, value, depth)
        except Exception:  # an object of the script's, or one that another thread changes: nothing can be said of it
            return

    def _take(self, label: Callable[[str], str], path: str, value: Any, depth: int) -> None:
        if isinstance(value, numpy.ndarray) and value.dtype.hasobject:
            value = value.tolist()
        if is_plain(value):
            self._kept_on(label, path, value, depth)
            if not is_clock_reading(value) and not (isinstance(value, torch.Tensor) and id(value) in self._seen):
                self._put(label, path, "variable", plain_text(value))
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if (state := generator_state(value)) is not None:
            self._put(label, path, "random generator", digest(state))
            self._kept_on(label, path, value, depth)
        elif isinstance(value, random.SystemRandom):
            self.reached.calls[f"{path} (a random.SystemRandom)"] = None
        elif never_alike(value):
            self.reached.calls[f"{path}()"] = None
        elif isinstance(value, BuiltinMethodType | MethodWrapperType | MethodType):
            self._look(label, path, value.__self__, depth - 1)
            self.reached.add(getattr(value, "__func__", None))
        elif isinstance(value, weakref.ref):
            self._look(label, path, value(), depth - 1)
        elif isinstance(value, functools.partial | FunctionType | property):
            self.reached.add(value)
        elif hasattr(value, "cache_info"):
            self._put(label, path, "variable", f"{value.cache_info().misses} answers kept")
            self.reached.calls[f"{path}(){KEEPS}"] = None
            self.reached.add(value)
        elif isinstance(value, contextvars.ContextVar):
            self._look(label, path, value.get(None), depth)
        elif isinstance(value, Iterator) and not is_of_script(type(value)):
            if (place := _place_of(value)) is not None:
                self._put(label, path, "iterator", place)
            self._made_of(label, path, value, depth)
        elif value is os.environ:
            for key, text in value.items():
                if not key.startswith(_LAUNCHED):
                    self._put(label, f"{path}[{key!r}]", "variable", digest(text))
        elif isinstance(value, _CONTAINERS):
            self._look_into(label, path, value, depth)
            self._kept_on(label, path, value, depth)
        elif hasattr(value, "get_obj") and hasattr(value, "get_lock"):  # of multiprocessing
            self._look(label, path, value.get_obj(), depth - 1)
        elif not isinstance(value, ModuleType):
            self._object(label, path, value, depth)

    def _put(self, label: Callable[[str], str], path: str, kind: str, text: str) -> None:
        shown = label(path)
        name = shown if shown.startswith((ATTRIBUTE, UNPROTECTED)) else f"{kind} {shown}"
        names = chain((name,), (f"{name} ({number})" for number in count(2)))  # two may have the same one
        self.found[next(each for each in names if self.found.get(each, text) == text)] = text

    def _kept_on(self, label: Callable[[str], str], path: str, value: Any, depth: int) -> None:
        """Takes down what a script has attached to a tensor, or keeps in a subclass of a container, an array, a generator."""
        kind = type(value)
        if isinstance(value, Enum) or not (isinstance(value, torch.Tensor | numpy.ndarray) or is_of_script(kind)):
            return
        if id(value) not in self._owners:
            self._owners[id(value)] = value
            for name, part in list(getattr(value, "__dict__", {}).items()):
                if not name.startswith(("__", "_dynamo")):
                    self._look(label, f"{path}.{name}", part, depth - 1)
            self._classes(kind, depth)

    def _classes(self, kind: type, depth: int) -> None:
        """Takes down what the classes of the script keep that this one is made of, and its metaclass."""
        for each in (*getmro(kind), *getmro(type(kind))):
            if is_of_script(each):
                self._look("{}".format, each.__name__, each, depth - 1)

    def _made_of(self, label: Callable[[str], str], path: str, iterator: Iterator[Any], depth: int) -> None:
        """Looks into what an iterator runs: the names that a generator will read, the functions and iterators of others."""
        if isinstance(iterator, GeneratorType):
            own = getgeneratorlocals(iterator)
            parts = () if iterator.gi_frame is None else self.reached.in_frame(iterator.gi_frame)
            named = [(f"{path}.{name}" if name in own else name, part) for name, part in parts]
        else:
            named = [(path, part) for part in _reduced(iterator)]
        for name, part in named:
            if isinstance(part, Iterator) and not is_of_script(type(part)):
                if depth > 0:
                    self._made_of(label, name, part, depth - 1)
            elif not is_plain(part) and not isinstance(part, _CONTAINERS):
                self._look(label, name, part, depth - 1)

    def _look_into(self, label: Callable[[str], str], path: str, value: Any, depth: int) -> None:
        """Takes down a container: as one value where there are only plain ones in it, else each part."""
        if len(value) > _ROW_MAX:
            parts = chain(value.keys(), value.values()) if isinstance(value, Mapping) else iter(value)
            shown = [part for part in islice(parts, _QUICK_MAX) if type(part) in _QUICK]
            self._put(label, path, "variable", f"{len(value)} entries, {digest(repr(shown))}")
            return
        mapping = isinstance(value, Mapping)
        rows = list(value.items()) if mapping else list(enumerate(value))
        if all(is_plain(part) and not isinstance(part, torch.Tensor) for _, part in rows):
            keys = (repr(key) if is_plain(key) or isinstance(key, tuple | type) else type(key).__name__ for key, _ in rows)
            texts = [
                f"{key}: {plain_text(part)}" if mapping else plain_text(part) for key, (_, part) in zip(keys, rows, strict=True)
            ]
            texts = sorted(texts) if isinstance(value, set | frozenset | weakref.WeakSet) else texts
            self._put(label, path, "variable", _row(texts))
            return
        for index, (key, part) in enumerate(rows):
            self._look(label, f"{path}[{key!r}]" if is_plain(key) else f"{path}[{type(key).__name__} {index}]", part, depth - 1)

    def _object(self, label: Callable[[str], str], path: str, value: Any, depth: int) -> None:
        kind = value if isinstance(value, type) else type(value)
        module = str(kind.__module__)
        if isinstance(value, type) and not is_of_script(value):
            return
        left_out = module.partition(".")[0] in (OURS, *_LEFT_OUT) or module.startswith(("torch.distributed", "torch._C"))
        if left_out and not isinstance(value, threading.local):
            return
        self.reached.add_class(kind)
        self._classes(kind, depth)
        if isinstance(value, nn.Module):
            for name, tensor in {**value._parameters, **value._buffers}.items():
                self._look(f"{UNPROTECTED}model {{}}".format, f"{path}.{name}", tensor, depth - 1)
            for name, inner in value._modules.items():
                self._look(label, f"{path}.{name}", inner, depth - 1)
        if isinstance(value, Optimizer):
            for index, group in enumerate(value.param_groups):
                settings = {key: each for key, each in group.items() if key != "params"}
                self._look(f"{UNPROTECTED}optimizer {{}}".format, f"{path}.param_groups[{index}]", settings, depth - 1)
            for index, kept in enumerate(value.state.values()):
                self._look(f"{UNPROTECTED}optimizer {{}}".format, f"{path}.state[{index}]", kept, depth - 1)
        kept = dict(_attributes(value))
        for name, part in kept.items():
            self._look(label, f"{path}.{name}", part, depth - 1)
        if not (kept or isinstance(value, type) or hasattr(value, "__dict__") or module in _NOTHING_IN):
            self.found[f"{UNSEEN}{path} (a {module}.{kind.__qualname__})"] = f"answer {token_hex(8)}"


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of what an object keeps for itself; of a library's only what it shows, or could save."""
    kind = owner if isinstance(owner, type) else type(owner)
    if isinstance(owner, DataLoader):
        yield from ((name, getattr(owner, name)) for name in _OF_LOADERS)
        return
    without = _OF_MODULES if isinstance(owner, nn.Module) else _OF_OPTIMIZERS if isinstance(owner, Optimizer) else ()
    shows_all = (
        is_of_script(kind)
        or kind.__module__ in _OF_NO_CLASS
        or (hasattr(owner, "state_dict") and not isinstance(owner, nn.Module | Optimizer))
    )
    kept: dict[str, Any] = {}
    if not isinstance(owner, type):
        slots = [getattr(each, "__slots__", ()) for each in kind.__mro__]
        names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
        kept = {name: getattr(owner, name) for name in names if name not in ("__dict__", "__weakref__") and hasattr(owner, name)}
    kept |= dict(getattr(owner, "__dict__", {}))
    for name, value in kept.items():
        code = isinstance(owner, type) and (name.startswith("_abc_") or _is_code(value))
        if name not in without and not name.startswith("__") and (shows_all or not name.startswith("_")) and not code:
            yield name, value


def _is_code(value: Any) -> bool:
    """Returns whether a class's attribute is a method or a descriptor, and keeps nothing."""
    return hasattr(type(value), "__get__") and not hasattr(value, "cache_info") and not is_of_script(type(value))


def _reduced(iterator: Iterator[Any]) -> tuple[Any, ...]:
    """Returns what one of itertools, a map or a zip goes on from, none of others."""
    if type(iterator).__module__ not in ("itertools", "builtins"):
        return ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 and 3.13 deprecate it for itertools, 3.14 has it no more
        try:
            made_of = iterator.__reduce__()
        except (TypeError, AttributeError):
            return ()
    return tuple(part for each in tuple(made_of)[1:] for part in (each if isinstance(each, tuple) else (each,)))


def _row(texts: list[str]) -> str:
    return digest(", ".join(texts)) if texts else "nothing"


def _place_of(iterator: Iterator[Any], depth: int = 3) -> str | None:
    """Returns what tells how far an iterator is, None when nothing does. `depth`: of iterators that run others."""
    if isinstance(iterator, GeneratorType) and depth:
        inside = {**getgeneratorlocals(iterator), "from": iterator.gi_yieldfrom}
        shown = {name: _inside(each, depth - 1) for name, each in inside.items()}
        rows = [f"{name} {text}" for name, text in shown.items() if text is not None]
        return digest(", ".join([getgeneratorstate(iterator), *rows]))
    if type(iterator) is count:
        return repr(iterator)
    yielded = getattr(iterator, "_num_yielded", None)  # of a DataLoader
    left = length_hint(iterator, -1)
    if yielded is not None or left >= 0:
        return f"{yielded} taken, {left} left"
    texts = [text for each in _reduced(iterator) for text in [_inside(each, depth - 1)] if text is not None] if depth else []
    return digest(", ".join(texts)) if texts else None


def _inside(value: Any, depth: int) -> str | None:
    if isinstance(value, Iterator):
        return _place_of(value, depth)
    if is_plain(value):
        return plain_text(value)
    if (state := generator_state(value)) is not None:
        return digest(state)
    if isinstance(value, list | tuple | set | dict) and depth:
        parts = value.values() if isinstance(value, dict) else value
        return ", ".join(text for each in islice(parts, _ROW_MAX) for text in [_inside(each, depth - 1)] if text is not None)
    return None
