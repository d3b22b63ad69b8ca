"""Maps the pages of a file in memory before they are written to: one call of the kernel instead of a fault for each page."""

import ctypes
import mmap

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_PART_BYTES = 16 << 20  # mapped by one call: a thread that takes memory, or gives it back, has to wait for the end of a call
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def prefault(memory: mmap.mmap) -> None:
    """Has the kernel map the whole of a writable mapping, in huge pages where the file system has them.

    Nothing happens where the kernel knows no such call: each page is then mapped when it is first used. The interpreter's lock is
    free meanwhile.
    """
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _libc.madvise(begin, len(memory), mmap.MADV_HUGEPAGE)
    for offset in range(0, len(memory), _PART_BYTES):
        _libc.madvise(begin + offset, min(_PART_BYTES, len(memory) - offset), _POPULATE_WRITE)
