"""Copies many small tensors into a slot by one call of the kernel for some hundred of them, beside the interpreter's lock.

A copy of a tensor by torch takes half a microsecond before it moves a byte. The kernel takes a table of addresses and sizes and
writes what is there into the slot's file, one after the other, which is the memory that is mapped here.
"""

import ctypes
import os
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from deadpool.proto.vault.layout import Item

_GAP = ctypes.create_string_buffer(64)  # what is written between two items: less than ALIGN_BYTES
_libc = ctypes.CDLL(None, use_errno=True)
_libc.pwritev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
_libc.pwritev.restype = ctypes.c_ssize_t


class Gather:
    """Of neighbouring items of a layout, 512 at most (copy_groups.py). For one thread alone."""

    def __init__(self, items: Sequence[Item]) -> None:
        rows: list[tuple[int, int]] = []  # address and size: of each item, and of the gap behind it
        places: list[int] = []
        for item, following in zip(items, [*items[1:], None], strict=True):
            places.append(len(rows))
            rows.append((0, item.nbytes))
            if following is not None and (gap := following.offset - item.offset - item.nbytes):
                rows.append((ctypes.addressof(_GAP), gap))
        self._places = numpy.array(places)
        self._table = numpy.array(rows, dtype=numpy.uint64)
        self._nbytes = sum(size for _, size in rows)

    def write(self, addresses: NDArray[numpy.uint64], file: int, offset: int) -> None:
        """Writes the items' bytes from `offset` of the open file on. OSError: it does not take them.

        `addresses`: for each item, of memory of the host that is its bytes in order, and stays until then.
        """
        self._table[self._places, 0] = addresses
        written = _libc.pwritev(file, self._table.ctypes.data, len(self._table), offset)
        if written != self._nbytes:
            error = ctypes.get_errno() if written < 0 else 0
            raise OSError(error, f"{written} of {self._nbytes} bytes were written: {os.strerror(error)}")
