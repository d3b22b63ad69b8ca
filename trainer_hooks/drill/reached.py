"""What a step reaches from where it begins: names of functions and of frames with their values, and the functions that it calls.

Functions of the script are looked into, also those that hooks, schedulers and objects keep for it; libraries are not.
"""

import builtins
import functools
import inspect
import os
import secrets
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from deadpool.trainer_hooks.drill.bytecode import Uses, uses_from, uses_of

OURS = __package__.partition(".")[0]
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_ROW_MAX = 10_000  # longer containers are not looked into
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
_UNCHANGING = (type(None), bool, int, float, complex, str, bytes)
_NEVER_ALIKE = (  # what answers otherwise whenever it is asked, or in each process
    time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns, datetime.now,
    datetime.utcnow, secrets.randbelow, secrets.token_bytes, secrets.token_hex, secrets.choice, secrets.randbits,
    uuid.uuid1, uuid.uuid4, os.urandom, os.getpid, id, hash, time.process_time, time.process_time_ns, time.thread_time,
    time.localtime, time.gmtime, time.ctime, time.strftime, os.times, os.getppid, os.getloadavg, threading.get_ident,
    threading.get_native_id, torch.seed, socket.gethostname, tempfile.mkdtemp, tempfile.mkstemp,
)  # fmt: skip


class Reached:
    """`calls`: functions that never answer alike, as far as found. What is added is looked into, each function once."""

    def __init__(self) -> None:
        self.calls: dict[str, None] = {}
        self._waiting: list[Any] = []
        self._seen: set[int] = set()

    def add(self, function: Any) -> None:
        self._waiting.append(function)

    def add_class(self, kind: type) -> None:
        """The methods of a class of the script may be called."""
        if id(kind) not in self._seen and is_of_script(kind):
            self._seen.add(id(kind))
            for each in vars(kind).values():
                self._waiting.append(each.__func__ if isinstance(each, classmethod | staticmethod) else each)

    def in_frame(self, frame: FrameType) -> Iterator[tuple[str, Any]]:
        """Yields (name, value) of what the code of this frame will still use."""
        values = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
        yield from self._values(uses_from(frame.f_code, frame.f_lasti), values)

    def in_functions(self) -> Iterator[tuple[str, Any]]:
        """Yields (name, value) of what the added functions use, and those that they call: also defaults and attributes."""
        while self._waiting:
            function = self._waiting.pop()
            while isinstance(function, functools.partial):
                yield from _given(function)
                function = function.func
            if inspect.ismethod(function):
                yield "self", function.__self__
                function = function.__func__
            if isinstance(function, property):
                self._waiting += [function.fget, function.fset]
            function = inspect.unwrap(function) if callable(function) else function
            if not isinstance(function, FunctionType) or id(function) in self._seen or is_library(function):
                continue
            self._seen.add(id(function))
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            closed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
            values = vars(builtins) | function.__globals__ | closed
            uses = uses_of(function.__code__)
            yield from self._values(uses, values)
            yield from _by_text(function.__code__, uses, values, function.__globals__)
            yield from self._of_function(function)

    def _of_function(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
        for name, value in given.items():
            if not isinstance(value, _UNCHANGING):
                yield f"{name} (a default of {function.__name__})", value
        for name, value in vars(function).items():
            if name != "__wrapped__":
                yield f"{function.__name__}.{name}", value

    def _values(self, uses: Uses, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for dotted in uses.dotted:
            if dotted[0] not in values or dotted[0].startswith("__"):
                continue
            value, length = values[dotted[0]], 1
            while isinstance(value, ModuleType) and length < len(dotted) and dotted[length] in vars(value):
                value, length = vars(value)[dotted[length]], length + 1
            name = ".".join(dotted[:length])
            if isinstance(value, ModuleType):
                continue
            if (call := _never_alike(value, dotted[length:])) is not None:
                self.calls[f"{'.'.join((name, *call))}()"] = None
            elif length == 1 or value is os.environ or _is_script_module(values[dotted[0]]) or _is_put_there(value):
                yield name, value


def _given(function: functools.partial[Any]) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of the arguments that the partial keeps, without those that never change."""
    names = getattr(getattr(function.func, "__code__", None), "co_varnames", ())
    positions = [names[index] if index < len(names) else f"argument {index}" for index in range(len(function.args))]
    kept = (*zip(positions, function.args, strict=True), *function.keywords.items())
    yield from ((name, value) for name, value in kept if not isinstance(value, _UNCHANGING))


def _by_text(code: CodeType, uses: Uses, values: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields what code may read by a text: of globals(), and of a module of the script by getattr() and vars()."""
    texts = [each for each in code.co_consts if isinstance(each, str)]
    spaces = {name: vars(values[name]) for name in uses.names if _is_script_module(values.get(name))}
    for prefix, space in {**({"": own} if "globals" in uses.names else {}), **spaces}.items():
        yield from ((f"{prefix}.{text}".lstrip("."), space[text]) for text in texts if text in space)


def _is_put_there(value: Any) -> bool:
    """Returns whether what is found in a library's module can be what the script keeps there."""
    return type(value) in (bool, int, float, str) or isinstance(value, Tensor) or is_of_script(type(value))


def never_alike(value: Any) -> bool:
    """Returns whether it is a function that answers otherwise whenever it is asked, or in each process."""
    return any(value is each for each in _NEVER_ALIKE)


def _never_alike(value: Any, attributes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Returns the attributes under which this is one of those functions; None: it is none."""
    if isinstance(value, type) and issubclass(value, datetime) and attributes[:1] in (("now",), ("utcnow",), ("today",)):
        return attributes[:1]
    return () if never_alike(value) else None


def script_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields this frame and those that called it, without those of libraries."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] != OURS and not frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen")):
            yield frame
            if name == "__main__" and frame.f_code.co_name == "<module>":
                return  # what has started the script is none of it
        frame = frame.f_back


def hooks_in(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yields the functions that models, optimizers and schedulers, or containers of them, keep to be called in a step."""
    match value:
        case Mapping() | list() | tuple() if depth and len(value) <= _ROW_MAX:
            for each in value.values() if isinstance(value, Mapping) else value:
                yield from hooks_in(each, depth - 1)
        case nn.Module():
            for each in (*value.modules(), *value.parameters()):
                yield from _hooks_of(each)
        case Optimizer() | LRScheduler():
            yield from _hooks_of(value)


def global_hooks() -> Iterator[Any]:
    """Yields the functions that torch calls for all modules."""
    for name, kept in vars(torch.nn.modules.module).items():
        if name.startswith("_global_") and isinstance(kept, Mapping):
            yield from kept.values()


def _hooks_of(owner: Any) -> Iterator[Any]:
    for name in _HOOKS:
        kept = getattr(owner, name, None)
        if kept:
            yield from kept.values() if isinstance(kept, Mapping) else kept


def is_library(function: Callable[..., Any]) -> bool:
    """Returns whether it is no function of the script or of modules beside it."""
    ours = str(function.__module__).partition(".")[0] == OURS
    return ours or function.__code__.co_filename.startswith(_LIBRARIES)


def is_of_script(kind: type) -> bool:
    """Returns whether it is a class of the script or of modules beside it."""
    return _is_script_module(sys.modules.get(kind.__module__))


def _is_script_module(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == OURS:
        return False
    return module.__name__ == "__main__" or (file is not None and not file.startswith(_LIBRARIES))


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
