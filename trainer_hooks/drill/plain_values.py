"""Values that can be compared as they are: numbers, text, tensors, arrays, and the states of random generators."""

import ctypes
import io
import random
import time
from array import array
from datetime import date, datetime, timedelta, tzinfo
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from mmap import mmap
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy
import torch
from torch import Tensor

from deadpool.trainer_hooks.drill.digests import digest
from deadpool.trainer_hooks.state.extras import spawned

_NUMBERS = (bool, int, float, complex, str, bytes, Tensor, numpy.ndarray, numpy.generic)
_TEXTS = (
    bytearray, range, slice, Enum, Decimal, Fraction, date, time_of_day, timedelta, tzinfo, PurePath, UUID, torch.dtype,
    torch.device,
)  # fmt: skip
_MEMORY: tuple[Any, ...] = (array, mmap, memoryview, ctypes.c_int.__mro__[1], ctypes.Array, ctypes.Structure, ctypes.Union)
_FILES = (io.BytesIO, io.StringIO)  # in memory
_POINTERS = "zZPO"  # of ctypes: addresses, which no two processes share
_MEMORY_MAX_BYTES = 64 << 20
_CLOCKS = (time.time, time.monotonic, time.perf_counter)
_AGE_MAX_S = 600.0


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (*_NUMBERS, *_TEXTS, *_MEMORY, *_FILES))


def plain_text(value: Any) -> str:
    """Returns the digest of a plain value."""
    if isinstance(value, _MEMORY):
        view = memoryview(value)
        is_text = view.nbytes <= _MEMORY_MAX_BYTES and getattr(value, "_type_", None) not in tuple(_POINTERS)
        return digest(view.tobytes()) if is_text else f"{view.nbytes} bytes"
    if isinstance(value, _FILES):
        return digest(value.getvalue())
    return digest(value if value is None or isinstance(value, _NUMBERS) else repr(value))


def is_clock_reading(value: Any) -> bool:
    """Returns whether the number looks like what a clock has said in this process: it is no state, and never the same."""
    if isinstance(value, datetime):
        value = value.timestamp()
    if not isinstance(value, float):
        return False
    return any(now - _AGE_MAX_S <= value <= now for now in (clock() for clock in _CLOCKS) if now > 10 * _AGE_MAX_S)


def generator_state(value: Any) -> Any:
    """Returns the state of a random generator, or of what others are made from; None: it is neither."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else repr(value.getstate())
    if isinstance(value, numpy.random.Generator):
        value = value.bit_generator
    if isinstance(value, numpy.random.BitGenerator):
        return repr((value.state, spawned(value)))
    if isinstance(value, numpy.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, numpy.random.SeedSequence):
        return repr(value.state)
    return None
