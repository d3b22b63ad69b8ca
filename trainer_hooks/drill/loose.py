"""What lies beside the state and may change what a step does: attributes, what the step function reaches.

It is no part of a snapshot. Whether it matters nobody can tell from here; where a step that was done again came out otherwise,
and one of these was not what it had been before the step, it is the likely cause.
"""

import dis
import functools
import inspect
import operator
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_OF_OPTIMIZERS = ("state", "param_groups", "defaults", "step", "optim")
_PLAIN = (bool, int, float, complex, str, bytes)
_ROW_MAX = 10_000  # longer containers are not looked at
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_DEPTH = 3  # of containers in containers
_HOOKS = (  # where torch keeps functions of the script that a step calls
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "lr_lambdas",
)


def loose_of(
    models: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer], step: Callable[..., Any] | None
) -> dict[str, Any]:
    """Returns a readable name -> the value now, for whatever could be found."""
    found: dict[str, Any] = {}
    for name, model in models.items():
        for path, module in model.named_modules():
            where = f"attribute {{}} of module {name}{f'.{path}' if path else ''}"
            found |= {where.format(key): kept for key, _, kept in _attributes(module)}
    for name, optimizer in optimizers.items():
        found |= {f"attribute {key} of {name}": kept for key, _, kept in _attributes(optimizer) if key not in _OF_OPTIMIZERS}
    known = {id(each) for each in (*models.values(), *optimizers.values())}
    for name, value in _reached_by([step, *_called_by((models, optimizers))]):
        if id(value) not in known:
            found |= dict(_within(name, value))
    return found


def _attributes(owner: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, value, what stands for it in a comparison)."""
    for key, value in vars(owner).items():
        if not key.startswith("_") and (kept := _comparable(value)) is not None:
            yield key, value, kept


def _within(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what can be compared of something that the step uses: itself, or the plain attributes of an object of the script."""
    kept = _comparable(value)
    if kept is not None:
        yield f"{_kind(value)} {name}", kept
    elif not isinstance(value, nn.Module | Optimizer | ModuleType | type) and not callable(value) and hasattr(value, "__dict__"):
        for key, inner, stands in _attributes(value):
            yield f"{_kind(inner)} {name}.{key}", stands


def _kind(value: Any) -> str:
    if _generator_state(value) is not None:
        return "random generator"
    return "iterator" if isinstance(value, Iterator) else "variable"


def _comparable(value: Any, depth: int = _DEPTH) -> Any:
    """Returns what stands for the value in a comparison, None when nothing can."""
    if isinstance(value, (*_PLAIN, Tensor)):
        return value
    if (state := _generator_state(value)) is not None:
        return state
    if isinstance(value, Iterator):
        return _place_of(value)
    if isinstance(value, list | tuple | set | dict) and depth and len(value) <= _ROW_MAX:
        return _of_container(value, depth - 1)
    return None


def _of_container(value: Any, depth: int) -> Any:
    """Returns it with what stands for each part, None when nothing does for one of them."""
    parts = value.values() if isinstance(value, dict) else value
    if all(isinstance(each, _PLAIN) for each in parts):
        stand: list[Any] = list(parts)
    else:
        stand = ["None" if each is None else _comparable(each, depth) for each in parts]
    if any(each is None for each in stand):
        return None
    if isinstance(value, dict):
        return dict(zip(map(str, value), stand, strict=True))
    return sorted(map(repr, stand)) if isinstance(value, set) else stand


def _place_of(iterator: Iterator[Any], depth: int = 3) -> Any:
    """Returns what tells how far an iterator is, None when nothing does. `depth`: of generators that run others."""
    if isinstance(iterator, GeneratorType) and depth:
        inside = {**inspect.getgeneratorlocals(iterator), "from": iterator.gi_yieldfrom}
        places = {name: _place_of(each, depth - 1) for name, each in inside.items() if isinstance(each, Iterator)}
        plain = {name: kept for name, each in inside.items() if name not in places and (kept := _comparable(each)) is not None}
        return {"is": inspect.getgeneratorstate(iterator), **plain, **places}
    yielded = getattr(iterator, "_num_yielded", None)  # of a DataLoader
    left = operator.length_hint(iterator, -1)
    return None if yielded is None and left < 0 else f"{yielded} taken, {left} left"  # one text: its path is the iterator's name


def _generator_state(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if type(value) is random.Random:
        return repr(value.getstate())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.RandomState):
        return repr(value.get_state())
    return None


def _reached_by(roots: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of what these functions close over, of the globals that they name, and of their own objects.

    Functions of the script that they call are looked into as well, also those that hooks and schedulers keep for them.
    """
    waiting, seen = list(roots), set()
    while waiting:
        function = waiting.pop()
        while isinstance(function, functools.partial):
            function = function.func
        if inspect.ismethod(function):
            yield "self", function.__self__
            function = function.__func__
        function = inspect.unwrap(function) if callable(function) else function
        if not isinstance(function, FunctionType) or id(function) in seen or _is_library(function):
            continue
        seen.add(id(function))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        names |= {name: function.__globals__[name] for name in _globals_of(function.__code__) if name in function.__globals__}
        for name, value in names.items():
            if isinstance(value, FunctionType):
                waiting.append(value)
            else:
                waiting += _called_by(value)
                yield name, value


def _globals_of(code: CodeType) -> set[str]:
    """Returns the globals that code reads, with those of functions within it; not what it reads of objects."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals_of(each) for each in code.co_consts if isinstance(each, CodeType)))


def _called_by(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yields the functions that models, optimizers and schedulers, or containers of them, keep to be called in a step."""
    match value:
        case Mapping() | list() | tuple() if depth and len(value) <= _ROW_MAX:
            for each in value.values() if isinstance(value, Mapping) else value:
                yield from _called_by(each, depth - 1)
        case nn.Module():
            for each in (*value.modules(), *value.parameters()):
                yield from _hooks_of(each)
        case Optimizer() | LRScheduler():
            yield from _hooks_of(value)


def _hooks_of(owner: Any) -> Iterator[Any]:
    for name in _HOOKS:
        kept = getattr(owner, name, None)
        if kept:
            yield from kept.values() if isinstance(kept, Mapping) else kept


def _is_library(function: FunctionType) -> bool:
    """Returns whether it is no function of the script or of modules beside it."""
    return function.__module__.partition(".")[0] == __package__.partition(".")[0] or function.__code__.co_filename.startswith(
        _LIBRARIES
    )


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
