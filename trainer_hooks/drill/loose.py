"""What lies beside the state and may change what a step does: attributes, and whatever the step reaches by its names.

It is no part of a snapshot. Whether it matters nobody can tell from here; where a step that was done again came out otherwise,
and one of these was not what it had been before the step, it is the likely cause.
"""

import contextvars
import functools
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import getgeneratorlocals, getgeneratorstate
from itertools import count, islice
from operator import length_hint
from secrets import token_hex
from types import FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from deadpool.trainer_hooks.drill.digests import digest
from deadpool.trainer_hooks.drill.plain_values import generator_state, is_clock_reading, is_plain, plain_text
from deadpool.trainer_hooks.drill.reached import OURS, Reached, hooks_in, is_of_script
from deadpool.trainer_hooks.drill.verdict import ATTRIBUTE, CALL, KEEPS, UNPROTECTED, UNSEEN

_DEPTH = 8
_VALUES_MAX = 20_000
_ROW_MAX = 10_000  # longer containers are not looked into
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
    for each in (step, *hooks_in((models, optimizers))):
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
        if is_plain(value):
            if not is_clock_reading(value) and not (isinstance(value, torch.Tensor) and id(value) in self._seen):
                self._put(label, path, "variable", plain_text(value))
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if (state := generator_state(value)) is not None:
            self._put(label, path, "random generator", digest(state))
        elif isinstance(value, functools.partial | FunctionType | MethodType | property):
            self.reached.add(value)
        elif hasattr(value, "cache_info"):
            self._put(label, path, "variable", f"{value.cache_info().misses} answers kept")
            self.reached.calls[f"{path}(){KEEPS}"] = None
            self.reached.add(value)
        elif isinstance(value, contextvars.ContextVar):
            self._look(label, path, value.get(None), depth)
        elif isinstance(value, Iterator):
            if (place := _place_of(value)) is not None:
                self._put(label, path, "iterator", place)
        elif value is os.environ:
            for key, text in value.items():
                if not key.startswith(_LAUNCHED):
                    self._put(label, f"{path}[{key!r}]", "variable", digest(text))
        elif isinstance(value, _CONTAINERS):
            self._look_into(label, path, value, depth)
        elif not isinstance(value, ModuleType):
            self._object(label, path, value, depth)

    def _put(self, label: Callable[[str], str], path: str, kind: str, text: str) -> None:
        shown = label(path)
        self.found[shown if shown.startswith((ATTRIBUTE, UNPROTECTED)) else f"{kind} {shown}"] = text

    def _look_into(self, label: Callable[[str], str], path: str, value: Any, depth: int) -> None:
        """Takes down a container: as one value where there are only plain ones in it, else each part."""
        if len(value) > _ROW_MAX:
            self._put(label, path, "variable", f"{len(value)} entries")
            return
        mapping = isinstance(value, Mapping)
        rows = list(value.items()) if mapping else list(enumerate(value))
        if all(is_plain(part) and not isinstance(part, torch.Tensor) for _, part in rows):
            texts = [f"{key!r}: {plain_text(part)}" if mapping else plain_text(part) for key, part in rows]
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
        if is_of_script(kind) and not isinstance(value, type):
            self._look(label, kind.__name__, kind, depth - 1)
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
    shows_all = is_of_script(kind) or (hasattr(owner, "state_dict") and not isinstance(owner, nn.Module | Optimizer))
    kept: dict[str, Any] = {}
    if not isinstance(owner, type):
        slots = [getattr(each, "__slots__", ()) for each in kind.__mro__]
        names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
        kept = {name: getattr(owner, name) for name in names if name not in ("__dict__", "__weakref__") and hasattr(owner, name)}
    kept |= dict(getattr(owner, "__dict__", {}))
    for name, value in kept.items():
        code = isinstance(owner, type) and (callable(value) or isinstance(value, classmethod | staticmethod | property))
        if name not in without and not name.startswith("__") and (shows_all or not name.startswith("_")) and not code:
            yield name, value


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
    if type(iterator).__module__ in ("itertools", "builtins") and depth:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and 3.13 deprecate it for itertools, 3.14 has it no more
            made_of = iterator.__reduce__()
        texts = [text for each in made_of[1:] for text in [_inside(each, depth - 1)] if text is not None]
        return digest(", ".join(texts)) if texts else None
    return None


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
