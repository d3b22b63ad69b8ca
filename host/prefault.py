"""Maps the pages of a file in memory before they are written to: one call of the kernel instead of a fault for each page."""

import ctypes
import mmap

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def prefault(memory: mmap.mmap) -> None:
    """Has the kernel map the whole of a writable mapping, in huge pages where the file system has them.

    Nothing happens where the kernel knows no such call: each page is then mapped when it is first used. The interpreter's lock is
    free meanwhile.
    """
    begin = ctypes.c_char.from_buffer(memory)
    for advice in (mmap.MADV_HUGEPAGE, _POPULATE_WRITE):
        _libc.madvise(ctypes.addressof(begin), len(memory), advice)
